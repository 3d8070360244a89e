"""What the server says of jobs, read from captured answers; and what its words mean."""

from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import SubmitError
from cluster.schedulers import pbs
from cluster.schedulers.inside_job import has_processes
from cluster.schedulers.jobs import RUN, QueuedJob, Work, work_words
from cluster.schedulers.pbs import jobs
from cluster.schedulers.pbs.answers import (
    PBS,
    WORK,
    blocks,
    parse_clock,
    parse_entries,
    parse_jobs,
    parse_size,
    read_job,
    time_of,
)
from cluster.schedulers.queries import parse_job_id, refusal_words, silence_of
from tests.cluster.builders import holder, write_command
from tests.cluster.schedulers.captured import answer, answers

ALL = {job.job_id: job for job in parse_jobs(answer("openpbs", "qstat-f-F-json-all"))}


def info(job_id: str = "7.n0", limit: str = "", work: str = "", **words: object) -> QueuedJob:
    """`words`: by PBS's own names."""
    return read_job(job_id, {"job_state": "R", "Resource_List": {"walltime": limit}, "Variable_List": {WORK: work}, **words})


def test_all_jobs_of_an_answer_are_read() -> None:
    assert {job_id: job.stage for job_id, job in ALL.items() if not job_id.startswith("16[")} == {
        **{job_id: "runs" for job_id in ("10.n0", "12.n0", "13.n0", "14.n0", "15.n0", "19.n0")},
        **{job_id: "waits" for job_id in ("17.n0", "18.n0", "20.n0")},
    }
    job = ALL["13.n0"]
    assert (job.name, job.nodes, job.restarts, job.state) == ("B", "n1,n2", 0, "running")
    assert job.end == (job.expected or 0) + 15.0
    assert time_of("Sun Nov 22 05:54:44 2026") == 1795326884.0


def test_a_finished_job_says_how_it_ended() -> None:
    (job,) = parse_jobs(answer("openpbs", "qstat-x-f-F-json-finished"))
    assert (job.stage, job.state, job.ended_by) == ("over", "finished", None)
    (deleted,) = parse_jobs(answer("openpbs", "qstat-deleted"))
    assert (deleted.ended_by, pbs.reason_of(deleted, 0, 0.0)) == ("cancelled", "cancelled")
    (late,) = parse_jobs(answer("openpbs", "qstat-deleted-at-walltime"))
    assert late.ended_by == "timeout"
    ends = {status: info(job_state="F", Exit_status=status).ended_by for status in (-20, -11, -2, 5, 265, 271)}
    assert ends == {-20: "node_lost", -11: "requeued", -2: "not_started", 5: None, 265: None, 271: "cancelled"}
    found = info(job_state="F", Exit_status=-2, exec_host="n1/0*8+n2/0")
    assert (found.ended_by, found.lost) == ("not_started", "n1"), "a prologue ended with 1"
    assert info(job_state="F").ended_by == "cancelled", "it was deleted while it waited"


def test_what_happens_to_a_running_job_is_known_before_it_has_ended() -> None:
    begun = {"stime": "Thu Jan  1 00:16:40 1970", "limit": "00:01:00"}
    running = info(**begun)
    assert (running.expected, running.end) == (1000.0, 1060.0)
    assert pbs.reason_of(running, 0, 1059.0) is None
    assert pbs.reason_of(running, 0, 1060.0) == "timeout"
    assert pbs.reason_of(info(comment="Job run at x on (n1) and terminated by tester@n0", **begun), 0, 1001.0) == "cancelled"
    assert pbs.reason_of(replace(running, restarts=1), 0, 1001.0) == "requeued"
    assert pbs.reason_of(info(job_state="Q", run_count=1), 0, 1001.0) == "requeued"
    assert not has_processes(replace(running, restarts=1), holder("pbs"))
    assert has_processes(running, holder("pbs"))


def test_variables_that_are_no_text_and_no_numbers_hide_no_job() -> None:
    """Another user's: bytes that are no UTF-8, 1e999, the end of a line, quotes."""
    found = {job.job_id: job for job in parse_jobs(answer("openpbs", "qstat-odd-variables"))}
    assert {job.name for job in found.values()} >= {"t2", "t3"}
    broken = '{\n\t"Jobs":\t{\n\t\t"1.n0":\t{\n\t\t\t"Job_Name":\t007\n\t\t},\n\t\t"2.n0":\t{\n\t\t\t"Job_Name":\t"a"\n\t\t}\n\t}\n}\n'
    assert [name for name, _ in blocks(broken)] == ["1.n0", "2.n0"]
    assert [job.job_id for job in parse_jobs(broken)] == ["2.n0"]


@pytest.mark.processes
def test_a_job_tells_its_work_and_only_ours_are_ours(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than a few, the jobs of everybody are asked for."""
    job = info(work=work_words(Work(mark="slipway=a-1234", rule=RUN, wildcards="a-b-r1")), exec_host="n1/0+n2/0")
    assert (job.rule, job.wildcards, job.mark, job.nodes) == (RUN, "a-b-r1", "slipway=a-1234", "n1,n2")
    for name, text in (("qselect", "18.n0\n12.n0\n"), ("qstat", answer("openpbs", "qstat-f-F-json-all"))):
        (commands / f"said.{name}").write_text(text)
        write_command(commands / name, f"cat {commands}/said.{name}")
    for few in (16, 1):
        monkeypatch.setattr(jobs, "FEW", few)
        assert [job.job_id for job in jobs.our_jobs(0.0, 20.0)] == ["12.n0", "18.n0"]


def test_a_job_is_held_by_a_person_or_since_it_failed() -> None:
    held = info(job_state="H", comment="maintenance")
    assert (held.hold, held.why, info(job_state="H").why) == ("held", "held (maintenance)", "held")
    tried = "job held, too many failed attempts to run"  # as the server writes it: src/server/req_runjob.c
    failed = info(job_state="H", comment=tried)
    assert (failed.hold, failed.why) == ("failed", f"PBS could not start it ({tried})")
    assert (info(job_state="Q").hold, info(job_state="Q").why) == ("", "PBS has not looked at it yet")


def test_silence_is_told_from_refusal() -> None:
    said = answers("openpbs", "server-killed")
    assert len(said) >= 3
    assert all(silence_of(PBS, result) for result in said.values())
    refused = answers("openpbs", "errors")
    wrong = refused.pop("qsub with PBS_SERVER wrong")
    assert not silence_of(PBS, wrong)
    assert "knows no server of PBS" in refusal_words(PBS, wrong)
    assert not any(silence_of(PBS, result) for result in refused.values())


def test_an_id_is_read_and_a_refusal_said() -> None:
    (result,) = answers("openpbs", "qsub").values()
    assert parse_job_id(PBS, result) == "0.n0"
    refused = answers("openpbs", "errors")
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
