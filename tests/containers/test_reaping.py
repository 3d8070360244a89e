"""Which containers are removed: ours, whose job is gone, and no other. With docker and podman, slow: from labels to the removal."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.errors import ContainerError
from cluster import processes
from cluster.holder import holder_of
from cluster.types import Allocation, Holder, Node
from containers import reaping
from containers.engines import STORES, Engine
from containers.engines.docker_podman import remove_argv
from containers.reaping import LabelledContainer, plan_reap
from containers.spec import Owner, labels_of
from tests import images

NODE = Node(name="n1", hostname="n1", address="10.0.0.1")
SLURM = Allocation(scheduler="slurm", job_id="42", restart_count=1, nodes=(NODE,), device="cpu", exclusive=True)
LOCAL = dataclasses.replace(SLURM, scheduler="local", job_id=str(os.getpid()), restart_count=0)
UID = 1000
SLIPWAY = [str(Path(sys.executable).parent / "slipway")]


def found(allocation: Allocation = SLURM, uid: int = UID, **changes: Any) -> LabelledContainer:
    owner = Owner(**{"run_id": "run", "attempt": 1, "tag": "run-a1-0123abcd", "deadline": 17.9, "uid": uid, **changes})
    return LabelledContainer(engine="docker", id="1f", name="run-a1-0123abcd-n0", labels=labels_of(allocation, "n1", owner))


def test_labels_say_what_a_container_is() -> None:
    assert dict(found().labels) == {
        "slipway.run": "run",
        "slipway.attempt": "1",
        "slipway.tag": "run-a1-0123abcd",
        "slipway.job": "slurm:42:1",
        "slipway.user": "1000",
        "slipway.node": "n1",
        "slipway.deadline": "17",
    }


@pytest.mark.parametrize(
    ("container", "lives", "removed", "words"),
    [
        (found(), False, True, "job slurm:42:1 is gone"),
        (found(), True, False, "job slurm:42:1 lives"),
        (found(), None, False, "cannot be told"),
        (found(uid=1001), False, False, "of uid 1001, not ours"),
        (dataclasses.replace(found(), labels=()), False, False, "of uid ?, not ours"),
        (dataclasses.replace(found(), labels=(("slipway.user", "1000"), ("slipway.tag", "x"))), False, False, "no label that we write"),
        (dataclasses.replace(found(), labels=(("slipway.user", "1000"), ("slipway.job", "a:1:0"))), False, False, "no label that we write"),
    ],
)
def test_only_ours_whose_job_is_gone(container: LabelledContainer, lives: bool | None, removed: bool, words: str) -> None:
    (decision,) = plan_reap([container], lambda asked: [lives] * len(asked), UID)
    assert (decision.remove, decision.container) == (removed, container)
    assert words in decision.reason


def test_an_earlier_attempt_of_a_run_that_is_ours_goes_whatever_its_job_does() -> None:
    (decision,) = plan_reap([found()], lambda asked: [True] * len(asked), UID, lambda tag: tag == "run-a1-0123abcd")
    assert decision.remove
    (other,) = plan_reap([found(uid=7)], lambda asked: [True] * len(asked), UID, lambda _tag: True)
    assert not other.remove


@pytest.mark.processes
def test_one_that_cannot_be_removed_stays_and_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for docker, whose containers are the files of a directory; it cannot say anything of the first one alone."""
    here = tmp_path / "containers"
    here.mkdir()
    for id_ in ("1f", "2f"):
        told = {"id": id_, "name": f"/{found().name}", "labels": dict(found(uid=os.geteuid()).labels)}
        (here / id_).write_text(json.dumps(told) + "\n")
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\ncd "{here}"\ncase "$*" in *label=*) ls ;; inspect*) cat * ;; *id=1f*) echo "it is still there" >&2; exit 1 ;;\n'
        'ps*id=*) ls | grep "${5#id=}" || true ;; rm*) for id in "$@"; do :; done; rm "$id" ;; esac\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first, second = reaping.reap_here("docker", older=lambda _tag: True)
    assert [path.name for path in here.iterdir()] == ["1f"]
    assert (first.remove, first.stuck, second.remove, second.stuck) == (False, True, True, False)
    assert first.reason.startswith("of an earlier attempt of a run that is ours now, and it could not be removed: ")
    assert first.reason.endswith("it is still there")


def ended_process() -> Holder:
    process = subprocess.Popen(["sleep", "100"])
    holder = holder_of(process.pid, "local", LOCAL.job_id, 0)
    process.kill()
    process.wait()
    return holder


@pytest.mark.processes
def test_a_job_of_this_machine_lives_as_long_as_its_node_program() -> None:
    ours = holder_of(os.getpid(), "local", LOCAL.job_id, 0)
    assert reaping.jobs_alive([found(LOCAL, holder=ours)]) == [True]
    assert reaping.jobs_alive([found(LOCAL, holder=ended_process())]) == [False]
    elsewhere = dataclasses.replace(ours, pid_namespace="pid:[1]")
    assert reaping.jobs_alive([found(LOCAL, holder=elsewhere)]) == [None], "its processes cannot be seen from here"
    assert reaping.jobs_alive([found(LOCAL)]) == [None], "a pid alone names nobody"


@pytest.mark.processes
def test_labels_that_contradict_each_other_are_believed_by_nobody() -> None:
    ended = ended_process()
    assert reaping.jobs_alive([found(LOCAL, holder=dataclasses.replace(ended, job_id="7"))]) == [None]
    assert reaping.jobs_alive([found(dataclasses.replace(LOCAL, scheduler="none"))]) == [None]
    assert processes.boot_id() == ended.boot_id


@pytest.mark.processes
def test_the_scheduler_is_asked_once_for_all_jobs_and_only_about_what_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = json.loads((Path(__file__).parents[1] / "captured" / "slurm-22.05" / "squeue-states.json").read_text())
    (tmp_path / "answer").write_text("".join(line for line in captured["stdout"].splitlines(keepends=True) if line.startswith("6 ")))
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\nfor word; do echo $word >> {tmp_path}/asked; done\ncat {tmp_path}/answer\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    lives = dataclasses.replace(SLURM, job_id="6", restart_count=0)
    others = (dataclasses.replace(lives, job_id="9"), dataclasses.replace(lives, job_id="10"))
    wanted = [found(lives), found(others[0]), found(lives), found(others[0]), found(others[0]), found(others[1], uid=7)]
    containers = [dataclasses.replace(container, id=str(number)) for number, container in enumerate(wanted)]
    decisions = plan_reap(containers, reaping.jobs_alive, UID)
    assert [decision.remove for decision in decisions] == [False, True, False, True, True, False]
    assert [word for word in (tmp_path / "asked").read_text().split() if word.startswith("--jobs")] == ["--jobs=6,9"]


def test_what_an_engine_answers_is_read_or_refused() -> None:
    line = json.dumps({"id": "1f", "name": "/run-n0", "labels": {"slipway.user": "0", "b": "x,y=z"}})
    (container,) = reaping.parse_containers("docker", f"{line}\n\n")
    assert (container.name, container.label("b"), container.label("none")) == ("run-n0", "x,y=z", "")
    for text in ("what?", "[]", '{"id": "1"}'):
        with pytest.raises(ContainerError, match="docker inspect answered"):
            reaping.parse_containers("docker", text)


@pytest.mark.slow
def test_from_labels_to_the_removal(acting: Engine, tmp_path: Path) -> None:
    """One whose node program is dead, one that lives, one of another user, a foreign one; running and only created."""
    if acting.NAME not in STORES:
        pytest.skip("has no containers that outlive a job")
    dead, alive = ended_process(), holder_of(os.getpid(), "local", LOCAL.job_id, 0)
    mine = os.geteuid()
    wanted = {
        "dead": found(LOCAL, uid=mine, holder=dead),
        "created": found(LOCAL, uid=mine, holder=dead),
        "alive": found(LOCAL, uid=mine, holder=alive),
        "other": found(LOCAL, uid=mine + 1, holder=dead),
        "foreign": None,
    }
    limits = ["--ulimit", "nofile=1000:1000", "--ulimit", "nproc=1000:1000", "--network", "host"]
    try:
        for name, container in wanted.items():
            labels = [word for key, value in (container.labels if container else ()) for word in ("--label", f"{key}={value}")]
            how = ["create"] if name == "created" else ["run", "--detach"]
            subprocess.run(
                [acting.NAME, *how, *limits, *labels, "--name", f"i5-{name}", images.BASE, "sleep", "600"], check=True, capture_output=True
            )
        said = subprocess.run([*SLIPWAY, "reap"], check=True, capture_output=True, text=True, timeout=120).stdout
        assert f"{acting.NAME} i5-dead: would be removed by --remove: job {LOCAL.scheduler}:{LOCAL.job_id}:0 is gone" in said
        assert f"{acting.NAME} i5-alive: stays" in said
        decisions = reaping.reap_here(acting.NAME)
        assert {decision.container.name for decision in decisions if decision.remove} == {"i5-dead", "i5-created"}
        left = subprocess.run(
            [acting.NAME, "ps", "-a", "--format", "{{.Names}}"], check=True, capture_output=True, text=True
        ).stdout.split()
        assert {"i5-alive", "i5-other", "i5-foreign"} <= set(left)
        assert not {"i5-dead", "i5-created"} & set(left)
        assert not any(decision.remove for decision in reaping.reap_here(acting.NAME))
    finally:
        for name in wanted:
            subprocess.run(remove_argv(acting.NAME, f"i5-{name}"), check=False, capture_output=True)
