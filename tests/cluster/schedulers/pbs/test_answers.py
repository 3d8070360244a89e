"""What the server says of jobs, read from captured answers; and what its words mean."""

from dataclasses import replace

import pytest

from base.errors import SubmitError
from cluster.schedulers import pbs
from cluster.schedulers.jobs import RUN, Work, work_words
from cluster.schedulers.pbs import jobs
from cluster.schedulers.pbs.answers import (
    PBS,
    JobInfo,
    blocks,
    ended_by,
    parse_clock,
    parse_entries,
    parse_jobs,
    parse_size,
    stage_of,
    time_of,
)
from cluster.schedulers.queries import parse_job_id, refusal_words, silence_of
from cluster.types import Holder
from tests.cluster.schedulers.pbs.captured import answer, answers

ALL = {job.job_id: job for job in parse_jobs(answer("qstat-f-F-json-all"))}


def info(**words: object) -> JobInfo:
    return replace(JobInfo(job_id="7.n0", name="a", owner="tester", state="R"), **words)  # type: ignore[arg-type]


def test_all_jobs_of_an_answer_are_read() -> None:
    assert {job_id: stage_of(job.state) for job_id, job in ALL.items()} == {
        **{job_id: "runs" for job_id in ("10.n0", "12.n0", "13.n0", "14.n0", "15.n0", "19.n0")},
        **{job_id: "over" for job_id in ("16[0].n0",) if job_id in ALL},
        **{job_id: stage_of(job.state) for job_id, job in ALL.items() if job_id.startswith("16[")},
        **{job_id: "waits" for job_id in ("17.n0", "18.n0", "20.n0")},
    }
    job = ALL["13.n0"]
    assert (job.name, job.owner, job.hosts, job.walltime_s, job.restarts) == ("B", "tester", ("n1", "n2"), 15.0, 0)
    assert pbs.end_of(job) == (job.started or 0) + 15.0
    assert time_of("Sun Nov 22 05:54:44 2026") == 1795326884.0


def test_a_finished_job_says_how_it_ended() -> None:
    (job,) = parse_jobs(answer("qstat-x-f-F-json-finished"))
    assert (job.state, job.exit_status, ended_by(job)) == ("F", 5, None)
    (deleted,) = parse_jobs(answer("qstat-deleted"))
    assert (deleted.exit_status, ended_by(deleted), pbs.reason_of(deleted, 0, 0.0)) == (271, "cancelled", "cancelled")
    (late,) = parse_jobs(answer("qstat-deleted-at-walltime"))
    assert ended_by(late) == "timeout"
    assert ended_by(info(state="F", exit_status=-20)) == "node_lost"
    assert ended_by(info(state="F", exit_status=-2)) == "not_started", "a prologue ended with 1"
    found = jobs.queued_job(info(state="F", exit_status=-2, hosts=("n1", "n2")))
    assert (found.ended_by, found.lost) == ("not_started", "n1")
    assert ended_by(info(state="F", exit_status=None)) == "cancelled", "it was deleted while it waited"
    assert ended_by(info(state="F", exit_status=265)) is None, "a SIGKILL of nobody we know"


def test_what_happens_to_a_running_job_is_known_before_it_has_ended() -> None:
    running = info(started=1000.0, walltime_s=60.0)
    assert pbs.reason_of(running, 0, 1059.0) is None
    assert pbs.reason_of(running, 0, 1060.0) == "timeout"
    assert pbs.reason_of(replace(running, comment="Job run at x on (n1) and terminated by tester@n0"), 0, 1001.0) == "cancelled"
    assert pbs.reason_of(replace(running, restarts=1), 0, 1001.0) == "requeued"
    assert pbs.reason_of(info(state="Q", restarts=1), 0, 1001.0) == "requeued"
    holder = Holder(scheduler="pbs", job_id="7", restart_count=0, host="?", pid=1, pid_start=1, boot_id="?", pid_namespace="?")
    assert not pbs.is_running(replace(running, restarts=1), holder)
    assert pbs.is_running(running, holder)


def test_variables_that_are_no_text_and_no_numbers_hide_no_job() -> None:
    """Another user's: bytes that are no UTF-8, 1e999, the end of a line, quotes."""
    found = {job.job_id: job for job in parse_jobs(answer("qstat-odd-variables"))}
    assert {job.name for job in found.values()} >= {"t2", "t3"}
    broken = '{\n\t"Jobs":\t{\n\t\t"1.n0":\t{\n\t\t\t"Job_Name":\t007\n\t\t},\n\t\t"2.n0":\t{\n\t\t\t"Job_Name":\t"a"\n\t\t}\n\t}\n}\n'
    assert [name for name, _ in blocks(broken)] == ["1.n0", "2.n0"]
    assert [job.job_id for job in parse_jobs(broken)] == ["2.n0"]


def test_a_job_tells_its_work_and_only_ours_are_ours() -> None:
    work = Work(mark="slipway=a-1234", rule=RUN, wildcards="a-b-r1")
    jobs_ = [info(work=work_words(work), hosts=("n1", "n2")), info(owner="other"), info(job_id="10.n0", state="Q", submitted=5.0)]
    found = jobs.queued_jobs(jobs_, "tester")
    assert [job.job_id for job in found] == ["7.n0", "10.n0"]
    assert (found[0].rule, found[0].wildcards, found[0].mark, found[0].nodes) == (RUN, "a-b-r1", "slipway=a-1234", "n1,n2")
    assert (found[1].stage, found[1].why) == ("waits", "PBS has not looked at it yet")


def test_a_job_is_held_by_a_person_or_since_it_failed() -> None:
    held = jobs.queued_job(info(state="H", comment="maintenance"))
    assert (held.hold, held.why, jobs.queued_job(info(state="H")).why) == ("held", "held (maintenance)", "held")
    tried = "job held, too many failed attempts to run"  # as the server writes it: src/server/req_runjob.c
    failed = jobs.queued_job(info(state="H", comment=tried))
    assert (failed.hold, failed.why) == ("failed", f"PBS could not start it ({tried})")
    assert jobs.queued_job(info(state="Q")).hold == ""


def test_silence_is_told_from_refusal() -> None:
    said = answers("server-killed")
    assert len(said) >= 3
    assert all(silence_of(PBS, result) for result in said.values())
    refused = answers("errors")
    wrong = refused.pop("qsub with PBS_SERVER wrong")
    assert not silence_of(PBS, wrong)
    assert "knows no server of PBS" in refusal_words(PBS, wrong)
    assert not any(silence_of(PBS, result) for result in refused.values())


def test_an_id_is_read_and_a_refusal_said() -> None:
    (result,) = answers("qsub").values()
    assert parse_job_id(PBS, result) == "0.n0"
    refused = answers("errors")
    with pytest.raises(SubmitError, match="Unknown queue"):
        parse_job_id(PBS, next(result for command, result in refused.items() if command.startswith("qsub -q nope")))
    with pytest.raises(SubmitError, match="submit as an ordinary user"):
        parse_job_id(PBS, refused["qsub as root"])
    with pytest.raises(SubmitError, match="named no job"):
        parse_job_id(PBS, replace(result, stdout="\n"))


def test_sizes_and_times() -> None:
    assert [parse_size(text) for text in ("8gb", "1048576kb", "100", "8 gb", "x")] == [8 << 30, 1 << 30, 100, None, None]
    assert [parse_clock(text) for text in ("26:03:00", "", "1:00:00:00")] == [93780.0, None, None]


def test_a_node_of_brackets_in_brackets_is_left_out() -> None:
    entry = '{"a":' * 100_000 + "1" + "}" * 100_000
    answer = f'\t\t"n1":\t{{\n\t\t\t"x":{entry}\n\t\t}},\n\t\t"n2":\t{{\n\t\t\t"x":1\n\t\t}}\n'
    assert parse_entries(answer) == {"n2": {"x": 1}}
