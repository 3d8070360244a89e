"""The job's cgroup as parent: what the node and the engine say to it. Docker is a stand-in that says how it makes cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from containers.engines.docker import find_parent

JOB = "/system.slice/slurmstepd.scope/job_42/step_0/user"


class Node:
    """Its /proc/self/cgroup, its cgroup v2, and the engines on its PATH."""

    def __init__(self, place: Path) -> None:
        self.place, self.membership, self.root = place, place / "self", place / "cgroup"
        self.membership.write_text(f"0::{JOB}/task_0\n")
        (self.root / JOB.strip("/")).mkdir(parents=True)
        self.holds("")

    def holds(self, processes: str) -> None:
        (self.root / JOB.strip("/") / "cgroup.procs").write_text(processes)

    def engine(self, name: str, answer: str) -> None:
        path = self.place / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {self.place}/asked\n{answer}\n')
        path.chmod(0o755)

    def parent(self, engine: str, job: str = "42") -> tuple[str | None, str]:
        return find_parent(engine, "slurm", job, self.membership, self.root)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Node(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("answer", "path", "why"),
    [
        ("echo cgroupfs", JOB, "the job's own"),
        ("echo systemd", None, "dockerd makes cgroups by systemd, and only cgroupfs takes a path"),
        ("echo none", None, "by none"),
        ("exit 1", None, "by what it does not tell"),
    ],
)
def test_the_engine_must_make_cgroups_by_paths(node: Node, answer: str, path: str | None, why: str) -> None:
    node.engine("docker", answer)
    found = node.parent("docker")
    assert found[0] == path
    assert why in found[1]
    assert (node.place / "asked").read_text() == "info --format {{.CgroupDriver}}\n"


def test_an_engine_is_not_asked_where_the_node_says_no(node: Node) -> None:
    node.engine("docker", "echo cgroupfs")
    assert node.parent("docker", job="43")[0] is None
    node.holds("4711\n")
    assert "holds processes" in node.parent("docker")[1]
    (node.root / JOB.strip("/") / "cgroup.procs").unlink()
    assert "cannot be looked at: No such file" in node.parent("docker")[1]
    for engine in ("podman", "apptainer"):
        assert node.parent(engine) == (None, f"containers of {engine} are not put into cgroups of others")
    assert not (node.place / "asked").exists()
