"""What Grid Engine 8.1.9 answered, read again."""

import re
from functools import partial

import pytest

from base.errors import SchedulerOutputError, SubmitError
from base.process import CommandResult
from cluster.schedulers.jobs import QueuedJob, job_words
from cluster.schedulers.queries import last_words, parse_job_id
from cluster.schedulers.sge import launch_environ, parse_hosts, reason_of
from cluster.schedulers.sge.answers import (
    SGE,
    duration_s,
    ended_by_of,
    parse_accounting,
    parse_details,
    parse_list,
    with_details,
)
from cluster.schedulers.sge.jobs import with_lost
from tests.cluster.schedulers.captured import PLACE, answer, answers

captured = partial(answer, "sge")


def in_state(letters: str) -> QueuedJob:
    """A job on n1 that began at 22 Nov 2026 and has an hour, in a list."""
    began = "<JB_job_number>8</JB_job_number><JAT_start_time>2026-11-22T05:46:26</JAT_start_time><queue_name>all.q@n1</queue_name>"
    (job,) = parse_list(f'<j><job_list>{began}<state>{letters}</state><hard_request name="h_rt">3600</hard_request></job_list></j>')
    return job


def detailed(jobs: tuple[QueuedJob, ...], details: str) -> list[QueuedJob]:
    fields = parse_details(captured(details))
    return [with_details(job, fields.get(job.job_id, {})) for job in jobs]


def test_our_jobs_say_what_they_make_and_why_they_wait() -> None:
    first, second = detailed(parse_list(captured("qstat-list-ours")), "qstat-j-two-of-ours")
    assert (first.job_id, first.stage, first.state, first.nodes) == ("8", "runs", "running (r)", "n1")
    assert (second.stage, second.state, second.nodes) == ("waits", "waiting (qw)", "")
    assert (first.rule, first.wildcards, first.mark) == (
        "stage_train_push",
        "lenet-digits-b32-n2-g1-6b4d903fab-r1",
        "slipway=demo-0a1b2c3d",
    )
    assert second.why == 'waiting for slots to become free (queue instance "all.q@n1" dropped because it is full)'
    assert (first.submitted, first.directory) == (second.submitted, "/tmp")
    assert first.submitted is not None
    assert first.expected == pytest.approx(first.submitted, abs=5)


def test_ended_jobs_and_those_being_ended_are_told_apart() -> None:
    jobs = {job.job_id: job for job in parse_list(captured("qstat-list-with-ended"))}
    assert {job_id: job.stage for job_id, job in jobs.items()} == {"1": "over", "6": "over", "7": "over", "8": "ends", "9": "over"}
    assert jobs["7"].name == "slipway-lenet-digits-b32-n2-g1-6b4d903fab-r1.064dfffb"


def test_a_job_without_our_context_is_somebodys() -> None:
    (job,) = detailed(parse_list(captured("qstat-xml-running")), "qstat-j")
    assert (job.name, job.rule, job.mark) == ("sge1.sh", "", "")


def test_a_job_in_an_error_state_waits_and_says_why() -> None:
    failed, held = detailed(parse_list(captured("qstat-error-state-xml")), "qstat-j-error")
    assert (failed.stage, failed.state, held.stage, held.state) == ("waits", "in an error state (Eqw)", "waits", "held (hqw)")
    assert "exit_status of job start = 100" in failed.why
    assert held.why == "held"
    assert (failed.hold, held.hold) == ("failed", "held")


def test_a_complex_that_is_used_up_is_why_a_job_waits() -> None:
    job = with_details(in_state("qw"), parse_details(captured("gpu-qstat-j-pending"))["27"])
    assert job.why.startswith("waiting for slots to become free ((-l gpu=4) cannot run")
    assert job.submitted is not None


@pytest.mark.parametrize("text", ["", "error: commlib error", "<job_info>", "\x00"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(SchedulerOutputError, match="no XML"):
        parse_list(text)


def test_lines_of_strangers_are_left_out() -> None:
    assert parse_list("<j><job_list><JB_job_number>x</JB_job_number><state>r</state></job_list><job_list/></j>") == ()
    assert parse_details("==========\nnothing\njob_number: x\n") == {}


def test_the_last_record_of_the_accounting_is_the_jobs() -> None:
    answer = captured("qacct-j")
    record = parse_accounting(answer)["1"]
    assert (record["jobnumber"], record["exit_status"], record["failed"]) == ("1", "7", "0")
    other = re.sub(r"(?m)^jobnumber    1 ", "jobnumber    2 ", answer).replace("exit_status  7", "exit_status  3")
    both = parse_accounting(answer + other)
    assert {job_id: record["exit_status"] for job_id, record in both.items()} == {"1": "7", "2": "3"}
    assert ended_by_of(record) is None


@pytest.mark.parametrize(
    ("failed", "status", "word"),
    [
        ("100 : assumedly after job", "137                  (Killed)", "cancelled"),
        ("100 : assumedly after job", "139 (Segmentation fault)", None),
        ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137 (Killed)", "timeout"),
        ("25  : rescheduling", "99", "requeued"),
        ("0", "1", None),
    ],
)
def test_why_a_job_ended_stands_in_the_accounting(failed: str, status: str, word: str | None) -> None:
    assert ended_by_of({"failed": failed, "exit_status": status}) == word
    assert ended_by_of({}) is None


def test_a_job_that_was_put_back_by_force_has_lost_its_node() -> None:
    assert ended_by_of(parse_accounting(captured("qacct-put-back-by-force"))["1"]) == "node_lost"


def test_a_job_is_lost_whose_first_node_is_unknown() -> None:
    jobs = with_lost(parse_list(captured("qstat-two-running")), parse_list(captured("qstat-first-node-unknown")))
    assert [(job.job_id, job.nodes, job.lost) for job in jobs] == [("1", "n1", "n1"), ("2", "n3", "")]
    assert job_words(jobs[0], 0.0) == "job 1 is running (r) on n1, and n1 does not answer"


def test_a_job_put_back_into_the_queue_that_no_node_starts_counts_as_lost_until_it_runs() -> None:
    assert [(letters, in_state(letters).lost) for letters in ("Rt", "Rr", "t")] == [("Rt", "n1"), ("Rr", ""), ("t", "")]


def test_a_job_put_back_just_before_its_good_end_runs_again() -> None:
    """It stayed so: 8.1.9 had given it nodes anew while one of them still ended the first start."""
    (job,) = parse_list(captured("qstat-put-back-before-its-end"))
    assert (job.job_id, job.stage, job.restarts, job.lost) == ("11", "runs", 1, "n1")


def test_a_job_put_back_into_the_queue_waits_until_it_has_nodes() -> None:
    stages = {letters: in_state(letters).stage for letters in ("Rq", "hRwq", "Rt", "Rr", "dRq", "qw", "r", "t")}
    assert stages == {"Rq": "waits", "hRwq": "waits", "Rt": "runs", "Rr": "runs", "dRq": "ends", "qw": "waits", "r": "runs", "t": "runs"}


def test_qdel_and_h_rt_are_told_apart_by_the_time() -> None:
    job = next(job for job in parse_list(captured("qstat-list-with-ended")) if job.job_id == "8")
    assert job.expected is not None
    assert (job.stage, job.end) == ("ends", job.expected + 3590)
    assert reason_of(job, 0, job.expected + 60) == "cancelled"
    assert reason_of(job, 0, job.expected + 3599) == "timeout"


def test_a_job_that_was_put_back_into_the_queue_may_run_again_by_now() -> None:
    began = in_state("r").expected or 0.0
    for letters in ("Rq", "Rqw", "Rr", "Rt"):
        assert reason_of(in_state(letters), 0, began + 60) == "requeued"
    assert reason_of(in_state("Rr"), 1700000000, began + 60) is None
    assert reason_of(in_state("dRr"), 1700000000, began + 60) == "cancelled"
    assert reason_of(in_state("Rr"), 1700000000, began + 3599) == "timeout"


@pytest.mark.parametrize(("word", "seconds"), [("300", 300), ("1:00:10", 3610), ("", None), ("1:x", None), ("1:2:3:4", None)])
def test_durations(word: str, seconds: int | None) -> None:
    assert duration_s(word) == seconds


def test_a_host_may_stand_on_several_lines() -> None:
    assert parse_hosts("n2 4 all.q@n2 UNDEFINED\nn1 2 all.q@n1 <NULL>\nn1 2 b.q@n1 0,0:0,1\nbroken\n") == {"n2": 4, "n1": 4}


def test_the_environment_of_another_node_is_not_ours() -> None:
    lines = (PLACE / "sge" / "qrsh-inherit-environment-node1.txt").read_text(errors="surrogateescape").splitlines()
    environ = dict(line.split("=", 1) for line in lines if "=" in line) | {"BASH_FUNC_ml%%": "() { :; }", "TWO": "a\nb", "SAID": "a,b=c d"}
    passed = launch_environ(environ)
    assert {"QRSH_COMMAND", "QRSH_PORT", "PE_HOSTFILE", "TMPDIR", "HOSTNAME", "BASH_FUNC_ml%%", "TWO"} & set(passed) == set()
    assert (passed["JOB_ID"], passed["SGE_ROOT"], passed["SAID"]) == ("1", "/nfs/lab/sge", "a,b=c d")
    assert all(value.isprintable() for value in passed.values())


def test_refusals_are_told_in_grid_engines_words() -> None:
    refused = next(iter(answers("sge", "errors").values()))
    with pytest.raises(SubmitError, match='the requested parallel environment "nope" does not exist'):
        parse_job_id(SGE, refused)
    assert "Exiting" not in last_words(SGE, refused)
    assert parse_job_id(SGE, CommandResult(argv=("qsub",), returncode=0, stdout="31\n", stderr="")) == "31"
