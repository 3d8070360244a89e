"""What a supervisor makes of what it hears when several things end at once; without a node program."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from base.errors import Cancelled, RecordError
from base.process import CODE_ROOT
from cluster.types import Allocation, Node
from tests.workflow.run.supervisor.made import running_attempt
from workflow.run.link import reports
from workflow.run.link.event_loop import Call, Loop
from workflow.run.link.protocol import Channel
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.finish import give_up, not_clean
from workflow.run.supervisor.nodes import NodeHandle, how_it_ended
from workflow.run.supervisor.run_scope import RunEnded
from workflow.run.supervisor.running_attempt import RunningAttempt
from workflow.run.supervisor.step_limits import DEFAULT_LIMITS
from workflow.run.supervisor.supervisor import Relay, Supervisor

pytestmark = pytest.mark.processes

KILLED = Ending(status="killed", reason="rank 0 was killed from outside by SIGTERM")
OOM = Ending(status="oom", reason="rank 0 ran out of memory")


def handle(*messages: reports.Message) -> NodeHandle:
    node = NodeHandle(0, Node(name="n0", hostname="n0", address="127.0.0.1"))
    for message in messages:
        node.note(message)
    return node


def ended(run: RunningAttempt) -> Ending:
    run.scope.loop.until(lambda: run.scope.ending is not None)
    assert run.scope.ending is not None
    return run.scope.ending


@pytest.fixture
def run() -> Iterator[RunningAttempt]:
    """Whose node programs have not come up."""
    run = running_attempt()
    yield run
    run.nodes.close()


@pytest.mark.parametrize(
    ("code", "words", "said"),
    [
        (0, "srun: error: Node failure on n1", "its program ended: srun: error: Node failure on n1"),
        (1, "srun: error: x", "its program ended with 1: srun: error: x"),
        (0, "", "its program ended, and said nothing"),
    ],
)
def test_a_lost_node_has_one_name_and_no_failure_beside_a_0(run: RunningAttempt, code: int, words: str, said: str) -> None:
    assert how_it_ended(code, words) == said
    for node, name in (
        (Node(name="n1", hostname="n1", address="x"), "n1"),
        (Node(name="local-0", hostname="here", address="x"), "local-0 (here)"),
    ):
        run.scope.ending, run.is_ending = None, False
        run._lost(NodeHandle(0, node), said)
        assert ended(run).reason == f"the node program of {name} is gone: {said}"


@pytest.mark.parametrize(
    ("told_to_end", "failure", "ending"),
    [(False, KILLED, KILLED), (True, KILLED, None), (True, OOM, OOM)],
    ids=["nobody was told to end", "the scheduler is being asked why", "memory that ran out may be why"],
)
def test_a_failure_of_ranks_waits_for_the_word_of_a_scheduler_that_ends_them(
    run: RunningAttempt, told_to_end: bool, failure: Ending, ending: Ending | None
) -> None:
    if told_to_end:
        run.end_by_scheduler("got SIGTERM")
    run._training_failed(failure)
    assert run.scope.ending == ending


@pytest.mark.parametrize(
    ("silent", "word", "failed"),
    [((1,), "node_lost", ("n1",)), ((0, 1), "node_lost", ()), ((), "node_lost", ()), ((1,), "cancelled", ())],
)
def test_where_the_scheduler_has_lost_a_node_it_is_the_one_that_is_silent(
    run: RunningAttempt, silent: tuple[int, ...], word: str, failed: tuple[str, ...]
) -> None:
    """The scheduler may notice before we do; the run's next job is to keep off the node, and the end of this one does not wait for it."""
    for index in silent:
        run.nodes.all[index].channel = cast(Channel, SimpleNamespace(close=lambda: None, send=lambda _: None))
        run.nodes.all[index].heard -= 60
    run.is_ending = True
    run._cause_known("got SIGTERM", None, None, cast(Call, SimpleNamespace(result=lambda: word)))
    ending = ended(run)
    assert (ending.status, ending.failed_nodes) == (word, failed)
    assert ("nothing is heard of n1" in str(ending.reason)) == bool(failed)
    assert [node.index for node in run.nodes.present()] == [index for index in silent if not failed]


def test_where_the_scheduler_says_nothing_the_node_that_failed_is_at_fault_and_not_one_that_is_silent(run: RunningAttempt) -> None:
    run.nodes.all[1].lost = True
    failed = Ending(status="node_lost", reason="start on n0: no container", nodes=("n0",))
    run._cause_known("start on n0", None, failed, cast(Call, SimpleNamespace(result=lambda: None)))
    assert run.scope.ending == failed


def test_a_node_that_was_told_to_end_before_it_was_up_has_no_grant_to_read(run: RunningAttempt) -> None:
    """Its program is gone without a word; `wait_if_ending` waits for the scheduler's."""
    run.end_by_scheduler("got SIGTERM")  # the scheduler is being asked why
    with pytest.raises(RunEnded) as caught:
        run.wait_if_ending()
    assert caught.value.ending == Ending(status="cancelled", reason="got SIGTERM")


def test_several_causes_in_one_message_end_the_run_by_the_first(run: RunningAttempt) -> None:
    for during in ("stage", "start"):
        run._heard(handle(), reports.Failed(during=during, error="StagingError", message="it broke"))
    assert ended(run).reason == "stage on n0: it broke"


def test_a_signal_to_a_node_of_a_run_that_has_ended_leaves_no_time_to_try_again(run: RunningAttempt) -> None:
    run.scope.end(Ending(status="ok"))
    run._heard(handle(), reports.Signalled(number=15))
    assert run.scope.cancels == 1
    assert run.scope.ending == Ending(status="ok")
    assert not run.is_ending


@pytest.mark.parametrize(
    ("during", "error", "status"),
    [
        ("come up", "UnsupportedRequest", "node_lost"),
        ("preflight", "SlipwayError", "node_lost"),
        ("start", "StagingError", "node_lost"),
        ("stage", "StagingError", "storage"),
        ("stage", "ContainerError", "node_lost"),
    ],
)
def test_storage_is_not_accused_of_what_happens_without_it(run: RunningAttempt, during: str, error: str, status: str) -> None:
    run._heard(handle(), reports.Failed(during=during, error=error, message="it broke"))
    ending = ended(run)
    assert (ending.status, ending.reason) == (status, f"{during} on n0: it broke")


@pytest.mark.parametrize(("word", "status"), [("cancelled", "cancelled"), (None, "node_lost")])
def test_a_container_that_is_a_step_of_the_job_may_have_been_ended_with_it(run: RunningAttempt, word: str | None, status: str) -> None:
    """Slurm may have done so before any of our programs is told; where it knows nothing of an end, the container is at fault."""
    run.scheduler = Says(word)  # type: ignore[assignment]
    run._heard(handle(), reports.Failed(during="start", error="ContainerError", message="was not started: Job/step already completing"))
    assert run.scope.ending is None
    ending = ended(run)
    assert ending.status == status
    assert str(ending.reason).startswith("start on n0: was not started: Job/step already completing")


@pytest.mark.parametrize(("word", "status"), [("requeued", "preempted"), (None, "node_lost")])
def test_a_node_program_that_is_gone_may_have_been_killed_before_anybody_was_told(
    run: RunningAttempt, word: str | None, status: str
) -> None:
    """As Grid Engine does with those on other nodes than the first; where it knows nothing of an end, the node is at fault."""
    run.scheduler = Says(word)  # type: ignore[assignment]
    run._lost(handle(), "error: commlib error: got read error")
    ending = ended(run)
    assert (ending.status, ending.failed_nodes) == (status, () if word else ("n0",))
    assert "the node program of n0 is gone: error: commlib error" in str(ending.reason)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR2, "timeout"), (signal.SIGTERM, "cancelled")])
def test_a_signal_that_comes_only_at_the_limit_of_a_job_means_that_its_time_is_over(run: RunningAttempt, number: int, status: str) -> None:
    """As LSF's, which does not say why it ends a job that still runs."""
    run.scheduler = Says(None)  # type: ignore[assignment]
    run.end_by_scheduler("it was told", number=number)
    assert ended(run).status == status


def test_an_announcement_that_comes_twice_is_no_second_wish_to_end(run: RunningAttempt) -> None:
    """Grid Engine sends USR2 to a process twice; who waits for its reason is not to be hurried by that. TERM is somebody's wish."""
    supervisor = Supervisor("/nowhere", "a-r1", cast(Relay, None), None, DEFAULT_LIMITS)
    supervisor._scope, supervisor._begun = run.scope, run
    for _ in range(2):
        supervisor._signalled(signal.SIGUSR2)
    assert run.is_ending
    assert run.scope.ending is None
    supervisor._signalled(signal.SIGTERM)
    assert run.scope.ending == Ending(status="cancelled", reason="the supervisor got SIGTERM")


LAST_MOMENTS = """
import os, runpy, signal, sys

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGTERM, signal.SIGUSR2)):
        for number in numbers:
            kill(pid, number)

sys.late = Late()
runpy.run_module("workflow.run.supervisor", run_name="__main__")
"""
"""Signals after Python has taken its handlers away."""


def test_a_signal_in_the_last_moments_of_a_supervisor_is_not_its_exit_code(tmp_path: Path) -> None:
    """Such as one of a requeue just after the record was published."""
    argv = [sys.executable, "-P", "-c", LAST_MOMENTS, "--results", str(tmp_path / "none"), "--run", "a-r1"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(CODE_ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == RecordError.exit_code, done.stderr


class Says:
    """A scheduler that is asked for an end."""

    LIMIT_SIGNAL = signal.SIGUSR2

    def __init__(self, word: str | None) -> None:
        self._word = word

    def ended_by(self, allocation: Allocation) -> str | None:  # noqa: ARG002 - of the one job
        return self._word


def test_what_ended_before_anything_began_is_no_success() -> None:
    assert give_up(Loop(), Ending(status="timeout", reason="its time was over", planned=True), None, None) == Cancelled.exit_code
    assert give_up(Loop(), Ending(status="preempted", reason="not begun", planned=True), None, None) == 25


def test_nodes_that_could_not_end_all_are_named() -> None:
    assert not_clean([handle(reports.Stopped(clean=True))]) == []
    assert not_clean([handle(reports.Stopped(clean=False))]) == ["n0"]
    assert not_clean([handle()]) == ["n0"], "it did not answer"
