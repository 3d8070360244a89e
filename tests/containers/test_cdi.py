"""GPUs by CDI or by --gpus: what dockerd and the specifications say to it. Docker is a stand-in that answers as the Engine API says."""

import json
import os
from pathlib import Path

import pytest
import yaml

from containers.engines.docker import has_cdi
from tests.minicluster.gpus import MODEL, Card, cdi

pytestmark = pytest.mark.processes

UUIDS = ("GPU-aa", "GPU-bb")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in; it says what $SAYS does."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "docker"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/says && exit $(cat {tmp_path}/code)\n')
    path.chmod(0o755)
    says(tmp_path, [str(tmp_path / "etc"), str(tmp_path / "run")])
    (tmp_path / "run").mkdir()
    return tmp_path


def says(place: Path, directories: object, code: int = 0) -> None:
    (place / "says").write_text(json.dumps(directories))
    (place / "code").write_text(str(code))


def specify(path: Path, uuids: tuple[str, ...] = UUIDS, kind: str = "nvidia.com/gpu") -> None:
    cards = tuple(Card(index, uuid, f"00000000:0{index}:00.0", MODEL) for index, uuid in enumerate(uuids))
    content = {**cdi(cards), "kind": kind}
    path.write_text(yaml.safe_dump(content) if path.suffix == ".yaml" else json.dumps(content))


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_all_granted_gpus_must_be_named(docker: Path, name: str) -> None:
    specify(docker / "run" / name)
    assert has_cdi("docker", UUIDS)
    assert (docker / "asked").read_text() == "info --format {{json .CDISpecDirs}}\n"
    assert not has_cdi("docker", ("GPU-aa", "MIG-cc"))


def test_another_kind_and_what_is_no_specification_are_passed_over(docker: Path) -> None:
    specify(docker / "run" / "vendor.json", kind="vendor.com/net")
    (docker / "run" / "torn.json").write_text('{"kind": "nvidia.com/gpu", "devices": [')
    (docker / "run" / "list.yaml").write_text("- 1\n")
    (docker / "run" / "odd.json").write_text('{"kind": "nvidia.com/gpu", "devices": [null, 3]}')
    (docker / "etc").write_text("a file, no directory")
    specify(docker / "run" / "nvidia.txt")
    assert not has_cdi("docker", UUIDS)
    specify(docker / "run" / "one.json", UUIDS[:1])
    specify(docker / "run" / "two.yaml", UUIDS[1:])
    assert has_cdi("docker", UUIDS)


@pytest.mark.parametrize(("answer", "code"), [([], 0), (None, 0), ("x", 0), (["/run/cdi"], 1)])
def test_a_daemon_without_it_is_asked_and_believed(docker: Path, answer: object, code: int) -> None:
    """Off, as older daemons answer, and the client of an older one, which does not know the field."""
    specify(docker / "run" / "nvidia.json")
    says(docker, answer, code)
    assert not has_cdi("docker", UUIDS)


def test_nobody_is_asked_without_gpus_or_for_another_engine(docker: Path) -> None:
    assert not has_cdi("docker", ())
    assert not has_cdi("podman", UUIDS)
    assert not (docker / "asked").exists()
