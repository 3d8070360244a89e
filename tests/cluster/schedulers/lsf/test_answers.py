"""What OpenLava 4.0 answered, and what the manual of LSF 10.1 shows, read."""

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from base.errors import AllocationError, SubmitError
from base.process import CommandResult
from cluster.schedulers import lsf
from cluster.schedulers.jobs import QueuedJob, Stage
from cluster.schedulers.lsf import hosts_of_job, launch_argv, plan_allocation, restart_count
from cluster.schedulers.lsf.answers import (
    FIELDS,
    LSF,
    NO_SUCH_JOB,
    STAGES,
    ended_by_of,
    parse_details,
    parse_list,
    parse_queues,
    signal_of,
    submit_environ,
    time_of,
    with_details,
)
from cluster.schedulers.queries import complains_only_of, parse_job_id
from cluster.types import Allocation, AllocationRequest
from tests.cluster.builders import allocation, holder, write_command
from tests.cluster.schedulers.captured import answer, answers

captured = partial(answer, "lsf")
NOW = datetime(2026, 11, 23, 21, 40).timestamp()  # noqa: DTZ001 - LSF says local time
HOME = "/home/tester"


def clock(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006 - the same


def test_our_jobs_say_what_they_make_and_why_they_wait() -> None:
    details = parse_details(captured("details-two"), NOW)
    jobs = [with_details(job, details.get(job.job_id)) for job in parse_list(captured("list-ours"), NOW, HOME)]
    found = {job.job_id: job for job in jobs}
    runs, waits = found["106"], found["107"]
    assert (runs.stage, runs.state, runs.nodes, runs.name) == ("runs", "RUN", "n2,n1", "slipway-lenet-b32-r1.0a1b2c3d")
    assert (runs.rule, runs.wildcards, runs.mark) == ("stage_train_push", "lenet-b32-r1", "slipway=demo-0a1b2c3d")
    assert (clock(runs.submitted), clock(runs.expected)) == ("2026-11-23 21:36:49", "2026-11-23 21:36:50")
    assert (waits.stage, waits.state, waits.name, waits.rule) == ("waits", "PEND", "slipway-demo-11111111", "")
    assert waits.why == "Job slot limit reached: 1 host"
    assert {job.directory for job in jobs} == {HOME}
    assert (found["110"].stage, found["110"].why) == ("waits", "held")
    assert {job.job_id for job in found.values() if job.hold == "held"} == {"110"}


def test_how_jobs_have_ended() -> None:
    listed = {job.name: job for job in parse_list(captured("list-ended"), NOW, HOME)}
    details = parse_details(captured("details-ended"), NOW)
    ends = {name: ended_by_of(job.state, details[job.job_id]) for name, job in listed.items() if job.job_id in details}
    assert ends == {"killed": "cancelled", "slipway-demo-11111111": "cancelled", "limit": "timeout", "failed": None, "done": None}
    assert listed["x"].directory == f"{HOME}/d"
    assert details[listed["limit"].job_id].limit_s == 60


@pytest.mark.parametrize(
    ("how", "ended_by"),
    [
        ("Exited with exit code 130. The CPU time used is 0.1 seconds.\n", "cancelled"),
        ("Exited by signal 9. The CPU time used is 0.1 seconds.\n", "cancelled"),
        ("Exited by signal 11. The CPU time used is 0.1 seconds.\n", None),
        ("Exited with exit code 24. The CPU time used is 0.1 seconds.\n", None),
        ("Exited The CPU time used is unknown.\n", "node_lost"),
        ("Exited by signal 24.\n{at}: Completed <exit>; TERM_OWNER: job killed by owner.\n", "cancelled"),
        ("Exited with exit code 140.\n{at}: Completed <exit>; TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "timeout"),
        ("Exited.\n{at}: Completed <exit>; TERM_PREEMPT: job killed after preemption.\n", "preempted"),
        ("Exited.\n{at}: Completed <exit>; TERM_REMOVE_HUNG_JOB: job removed from the LSF system.\n", "node_lost"),
        ("Exited.\n{at}: Completed <exit>; TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n", None),
    ],
)
def test_the_reason_that_lsf_gives(how: str, ended_by: str | None) -> None:
    """As the manual of LSF 10.1 shows `bjobs -l`; a job there is `Job <7>`, and starts with tasks."""
    at = "Mon Nov 23 21:36:59"
    text = (
        "Job <7>, Job Name <a>, User <u>, Status <EXIT>\nMon Nov 23 21:36:40: Submitted from host <h>, CWD </>;\n"
        f"Mon Nov 23 21:36:49: Started 2 Task(s) on Host(s) <1*n1> <1*n2>, Allocated 2 Slot(s)\n{at}: {how.format(at=at)}"
    )
    assert ended_by_of("EXIT", parse_details(text, NOW)["7"]) == ended_by
    assert ended_by_of("DONE", parse_details(text, NOW)["7"]) is None


def test_what_was_asked_for_a_job_that_runs_is_in_its_history() -> None:
    assert signal_of(captured("bhist-running")) is None
    assert signal_of(captured("bhist-requeue")) == "requeued"
    begun = "Mon Nov 23 21:36:50: Starting (Pid 153);\n"
    killed = "Mon Nov 23 21:37:41: Signal <KILL> requested by user or administrator <tester>;\n"
    assert signal_of(begun + killed) == "cancelled"
    assert signal_of(begun + killed + begun) is None, "that was an earlier start"


def listed(line: str) -> QueuedJob:
    (job,) = parse_list(f"{line}\n{line}\n", NOW, HOME)
    return job


@pytest.fixture
def lsf_says(commands: Path) -> Callable[..., None]:
    """Commands that answer as captured: `bjobs -o`, `bjobs -l` and `bhist`; a captured file that is empty is a command that fails."""

    def say(listed: str = "", details: str = "", history: str = "") -> None:
        for name, files in (("bjobs", (listed, details)), ("bhist", (history, history))):
            for kind, said in zip(("o", "l"), files, strict=True):
                (commands / f"{name}-{kind}").write_text(captured(said) if said else "")
            file = f'"{commands}/{name}-$(case "$*" in *"-o "*) echo o ;; *) echo l ;; esac)"'
            write_command(commands / name, f"[ -s {file} ] && exec cat {file}\necho 'may not' >&2; exit 255")

    return say


def job_of(job_id: str, deadline: float | None = None) -> Allocation:
    return allocation("lsf", job_id=job_id, deadline=deadline)


@pytest.mark.processes
def test_why_our_job_ends_and_when(lsf_says: Callable[..., None]) -> None:
    lsf_says("list-ours", "details-two", "bhist-requeue")
    assert [lsf.ended_by(job_of(job_id)) for job_id in ("106", "107", "999")] == ["requeued", "requeued", None]
    assert lsf.ended_by(job_of("106", deadline=time.time() + 1)) == "timeout"
    holders = [holder("lsf", job_id) for job_id in ("106", "107", "999")]
    assert lsf.holders_alive(holders, 0.0) == (True, False, False)
    facts = lsf.job_facts(job_of("106", deadline=10**10))
    assert (clock(facts["submitted"]), clock(facts["started"])) == ("2026-11-23 21:36:49", "2026-11-23 21:36:50")
    assert facts["deadline"] == (facts["started"] or 0) + 3600
    lsf_says("list-ours", "", "bhist-running")
    assert lsf.ended_by(job_of("106")) is None
    assert lsf.job_facts(job_of("106", deadline=7.0)) == {"deadline": 7.0, "submitted": None, "started": None}, "this node may not ask"
    lsf_says("list-ended", "details-ended")
    ended = {job.name: job.job_id for job in parse_list(captured("list-ended"), NOW, HOME)}
    assert {name: lsf.ended_by(job_of(ended[name])) for name in ("killed", "limit", "done")} == {
        "killed": "cancelled",
        "limit": "timeout",
        "done": None,
    }
    lsf_says()
    assert lsf.ended_by(job_of("106")) is None


def test_every_state_has_a_stage() -> None:
    stages: dict[str, Stage] = {"PEND": "waits", "UNKWN": "runs", "ZOMBI": "ends", "EXIT": "over", "NEW": "runs"}
    assert {state: listed(f"9^{state}^-^-^-^-^a").stage for state in stages} == stages
    assert set(STAGES.values()) == {"waits", "runs", "ends", "over"}


@pytest.mark.parametrize("text", ["", "No unfinished job found\n", "a^b\n", "x^RUN^^^^^\n", "\0\n", "^" * 40])
def test_lines_that_are_no_jobs_are_left_out(text: str) -> None:
    assert parse_list(text, NOW, HOME) == ()


def test_a_number_of_very_many_digits_and_other_ends_of_lines_hide_no_job() -> None:
    rest = "^RUN^Nov 22 05:58^-^n1^/home/a\N{LINE SEPARATOR}b^slipway-a"
    assert [len(job.job_id) for job in parse_list(f"{'9' * 5000}{rest}\n7{rest}\n10{rest}\n", NOW, HOME)] == [1, 2, 5000]


def test_tasks_of_an_array_are_one_job_and_a_name_may_hold_anything() -> None:
    line = "^".join(["9", "RUN", "-", "-", "8*n1:8*n2", "$HOME/w", "a^b"])
    job = listed(line)
    assert (job.name, job.nodes, job.directory, job.submitted) == ("a^b", "n1,n2", f"{HOME}/w", None)
    assert len(FIELDS) == 7


@pytest.mark.parametrize(
    ("words", "is_time"),
    [
        ("Nov 23 21:36", "2026-11-23 21:36:00"),
        ("Dec 24 21:36", "2025-12-24 21:36:00"),
        ("Mon Nov 23 21:36:50", "2026-11-23 21:36:50"),
        ("Sun Nov 23 21:36:50 2025", "2025-11-23 21:36:50"),
        ("-", ""),
        ("Foo 99 21:36", ""),
        ("", ""),
    ],
)
def test_times_without_a_year_are_the_last_such_ones(words: str, is_time: str) -> None:
    assert clock(time_of(words, NOW)) == is_time


def test_details_of_nothing() -> None:
    assert parse_details("Job <5> is not found\n", NOW) == {}
    assert with_details(listed("5^PEND^-^-^-^-^a"), None).why.startswith("LSF has not looked at it")


def test_jobs_that_are_unknown_or_over_are_no_failure() -> None:
    for name, known in (("bkill-again", True), ("no-queue", False)):
        (result,) = answers("lsf", name).values()
        assert complains_only_of(result, NO_SUCH_JOB) is known
    assert not complains_only_of(CommandResult(argv=("x",), returncode=255, stdout="", stderr=""), NO_SUCH_JOB)
    jobs = parse_list(captured("unknown"), NOW, HOME)
    assert [job.job_id for job in jobs] == ["106"]


def test_a_refusal_is_said_by_its_own_words() -> None:
    with pytest.raises(SubmitError, match="LSF refused the job: Too many processors requested"):
        parse_job_id(
            LSF, CommandResult(argv=("bsub",), returncode=255, stdout="", stderr="Too many processors requested. Job not submitted.\n")
        )


def test_what_a_submission_takes_along() -> None:
    environ = {"PATH": "/bin", "LSF_ENVDIR": "/etc/lsf", "LSB_JOBID": "7", "SLURM_JOB_ID": "8", "HOME": "/h", "AWS_SECRET": "x"}
    assert submit_environ(environ) == {"PATH": "/bin", "LSF_ENVDIR": "/etc/lsf", "HOME": "/h", "LC_ALL": "C"}


def test_hosts_of_a_job(tmp_path: Path) -> None:
    assert hosts_of_job({"LSB_MCPU_HOSTS": "n2 8 n1 8 "}) == {"n2": 8, "n1": 8}
    assert hosts_of_job({"LSB_HOSTS": "n2 n2 n1"}) == {"n2": 2, "n1": 1}
    file = tmp_path / "hosts"
    file.write_text("n3\nn3\nn4\n")
    assert hosts_of_job({"LSB_MCPU_HOSTS": "n3", "LSB_DJOB_HOSTFILE": str(file), "LSB_HOSTS": "x"}) == {"n3": 2, "n4": 1}
    assert hosts_of_job({"LSB_MCPU_HOSTS": "n1 many"}) == {}


def test_an_allocation() -> None:
    request = AllocationRequest(nodes=2, gpus_per_node=1, largest_nodes=2, device="cpu")
    environ = {"LSB_JOBID": "7", "SLIPWAY_JOB_STARTED": "1000", "SLIPWAY_JOB_SECONDS": "600", "SLIPWAY_JOB_STARTS": "2"}
    addresses = {"n2": "10.0.0.2", "n1": "10.0.0.1"}
    found = plan_allocation(request, environ, {"n2": 8, "n1": 4}, addresses)
    assert ([node.name for node in found.nodes], found.deadline, found.restart_count) == (["n2", "n1"], 1600.0, 2)
    assert (found.own_job, found.cpus_per_node, found.exclusive) == (True, 4, True)
    assert not plan_allocation(request, {**environ, "LSB_INTERACTIVE": "Y"}, {"n2": 8, "n1": 4}, addresses).own_job
    with pytest.raises(AllocationError, match=r"2 nodes were asked, 1 granted \(n2\) with 8 slots"):
        plan_allocation(request, environ, {"n2": 8}, {"n2": "10.0.0.2"})
    assert restart_count({}) == 0


def test_words_that_a_shell_of_the_node_would_change_are_refused() -> None:
    argv = launch_argv("n1", ("/opt/x/python", "-m", "a.b", "--node", "0"))
    assert argv[4:] == ("blaunch", "-z", "n1", "env", "SLIPWAY_LSF_NODE=n1", "/opt/x/python", "-m", "a.b", "--node", "0")
    with pytest.raises(AllocationError, match="cannot hand over '/opt/a b/python'"):
        launch_argv("n1", ("/opt/a b/python",))


def test_queues_and_hosts() -> None:
    assert parse_queues(captured("bqueues")) == ("normal",)
