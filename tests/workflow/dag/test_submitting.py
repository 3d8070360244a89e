"""What a job leaves for those who wait for it: two Snakemakes may wait for the same one."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.schedulers.jobs import Work
from cluster.schedulers.slurm.answers import COLUMNS
from workflow.dag.submitting import FRESH_S, Submissions, remove_old_exit_files
from workflow.dag.watched_jobs import Submitted, exit_file


@pytest.mark.processes
def test_the_end_of_a_job_is_seen_by_both_who_wait_for_it(tmp_path: Path) -> None:
    work = Work(mark="slipway=a-00000000", rule="dataset_shard", wildcards="digits_00000")
    file = Path(exit_file(str(tmp_path), "slipway-digits.0"))
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    ended: list[tuple[Any, str | None]] = []
    for adopted in (True, False):
        one = Submissions("sge", work.mark, str(tmp_path), lambda what, why: ended.append((what, why)))
        one.close()
        one.watch(
            Submitted(job_id="17", name="slipway-digits.0", work=work, directory=str(tmp_path), asked_at=0.0, adopted=adopted), adopted
        )
        one.watched.look()
    assert ended == [(True, None), (False, None)]


def test_exit_codes_of_yesterday_are_taken_away(tmp_path: Path) -> None:
    for name, age in (("old", 90000), ("new", 10)):
        (tmp_path / f"{name}.exit").write_text("0\n")
        os.utime(tmp_path / f"{name}.exit", (time.time() - age,) * 2)
    remove_old_exit_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.exit"]


@pytest.mark.processes
def test_a_second_ctrl_c_does_not_keep_jobs_from_being_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, lines in (("scancel", f'kill -INT $PPID $$\necho "$@" > {tmp_path}/cancelled'), ("squeue", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = signal.getsignal(signal.SIGINT)
    one = Submissions("slurm", "slipway=a-00000000", str(tmp_path), lambda *_: None)
    work = Work(mark="slipway=a-00000000", rule="dataset_shard", wildcards="digits_00000")
    one.watch(Submitted(job_id="17", name="slipway-digits.0", work=work, directory=str(tmp_path), asked_at=0.0), None)
    one.cancel()
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.processes
def test_a_job_that_another_snakemake_has_submitted_meanwhile_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def queue_holds(*job_ids: str) -> None:
        words = {"state": "PENDING", "comment": "rule_stage_train_push_wildcards_a-r1 slipway=a-00000000", "name": "slipway-a-r1.0"}
        lines = ["".join({**words, "job_id": job_id}.get(key, "").ljust(width) for key, _, width in COLUMNS) for job_id in job_ids]
        (tmp_path / "answer").write_text("\n".join([*lines, ""]))

    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue_holds()
    one = Submissions("slurm", "slipway=a-00000000", str(tmp_path), lambda *_: None)
    one.close()
    assert one.earlier("stage_train_push", "b-r1") is None
    queue_holds("17")
    assert one.earlier("stage_train_push", "a-r1") is None, "one question serves many submissions"
    one._looked -= FRESH_S
    found = one.earlier("stage_train_push", "a-r1")
    assert found is not None
    assert (found.job_id, found.name, found.adopted) == ("17", "slipway-a-r1.0", True)
    assert "job 17 is in the queue already for a-r1: it is waited for" in capfd.readouterr().err
    one.watch(found, None)
    one._looked -= FRESH_S
    assert one.earlier("stage_train_push", "a-r1") is None, "it has failed, and this is another try"
