import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from base.errors import SchedulerOutputError, SchedulerSilent
from cluster.schedulers import slurm
from cluster.schedulers.queries import pauses
from cluster.schedulers.slurm.answers import job_environ, job_info, parse_duration, parse_queue
from tests.cluster.builders import holder, write_command
from tests.cluster.schedulers.slurm.squeue import squeue_job

BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_CONF": "/etc/x.conf",
    "SLURM_PROCID": "0",
    "PATH": "/bin",
}


def test_a_batch_script_has_all_of_it_and_outside_of_a_job_there_is_nothing() -> None:
    assert job_environ({"PATH": "/bin", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": ""}) == {}
    assert job_environ({**BATCH, "SLURM_NTASKS": ""}) == {key: value for key, value in BATCH.items() if key != "PATH"}


CAPTURED = Path(__file__).parents[3] / "captured" / "slurm-22.05"


def captured(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CAPTURED / f"{name}.json").read_text())
    return content


def answer(commands: Path, name: str) -> None:
    """That of squeue."""
    content = captured(name)
    (commands / "out").write_text(content["stdout"])
    (commands / "err").write_text(content["stderr"])
    write_command(commands / "squeue", f'cat "{commands}/out"; cat "{commands}/err" >&2; exit {content["returncode"]}')


JOBS = {job.job_id: job for job in parse_queue(captured("squeue-states")["stdout"])}


def test_a_running_job_is_read() -> None:
    job = JOBS["6"]
    assert (job.name, job.stage, job.state, job.why, job.restarts, job.nodes) == ("odd name=1 x", "runs", "running", "", 0, "n1")
    assert (job.submitted, job.expected, job.end, job.ended_by) == (1795770119.0, 1795770120.0, 1795775520.0, None)


def test_a_requeued_job_one_that_is_over_and_each_of_an_array_is_read() -> None:
    job = JOBS["2"]
    assert (job.state, job.why, job.restarts, job.nodes) == ("pending", "BeginTime", 1, "")
    assert (JOBS["3"].state, JOBS["3"].ended_by, JOBS["3"].end) == ("cancelled", "cancelled", 1795770018.0)
    assert [(JOBS[job_id].name, JOBS[job_id].state) for job_id in ("4", "5")] == [("many", "cancelled")] * 2


def test_a_state_of_several_words_and_a_job_without_a_limit_are_read() -> None:
    job = squeue_job(job_id="7", state="RUNNING,SIGNALING", limit_s="UNLIMITED", end="Unknown")
    assert (job.state, job.end, job.restarts) == ("running", None, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1-02:03:04", 93784.0),
        ("1-12", 129600.0),
        ("02:00:00", 7200.0),
        ("00:00:10", 10.0),
        ("5:00", 300.0),
        ("30", 1800.0),
        *((word, None) for word in ("UNLIMITED", "infinite", "NONE", "NOT_SET", "", "later")),
    ],
)
def test_durations(text: str, expected: float | None) -> None:
    assert parse_duration(text) == expected


def test_questions_come_less_and_less_often() -> None:
    assert list(itertools.islice(pauses(), 7)) == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["show-job-stopped", "show-job-gone"])
def test_a_silent_controller_is_said_to_be_silent(commands: Path, name: str) -> None:
    answer(commands, name)
    with pytest.raises(SchedulerSilent, match="does not answer `squeue .* --states=all --jobs=1`"):
        job_info("1", patience_s=0.0)
    assert slurm.holders_alive((holder("slurm", "1"), holder("slurm", "2")), 0.0) == (None, None)


@pytest.mark.processes
def test_a_job_that_is_not_known_is_none_and_a_line_that_cannot_be_read_may_be_the_job(commands: Path) -> None:
    answer(commands, "show-job-unknown")
    assert job_info("99") is None
    answer(commands, "squeue-states")
    job = job_info("6")
    assert job is not None
    assert job.state == "running"
    (commands / "out").write_text("what is this\n")
    with pytest.raises(SchedulerOutputError, match="a line of squeue cannot be read"):
        job_info("6")
