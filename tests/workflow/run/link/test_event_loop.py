"""Calls in children, and the watch over training, without any node program."""

import os
import signal
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from base.errors import NotEnoughSpace, StorageError
from cluster.types import Node
from workflow.run.link import reports
from workflow.run.link.commands import Checkpoint, ReportRanks
from workflow.run.link.event_loop import Call, Loop
from workflow.run.node.node_work import NodeWork
from workflow.run.plan import Framework
from workflow.run.record.outcome import Ending, RankEnd
from workflow.run.record.progress_line import ProgressLine
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.step_limits import AttemptLimits
from workflow.run.supervisor.training import Training


@pytest.mark.processes
def test_a_call_gives_what_the_function_returned_or_raised() -> None:
    loop = Loop()
    assert Call(loop, "sum", sum, [1, 2, 3], timeout_s=20).wait() == 6
    with pytest.raises(NotEnoughSpace, match="there are 3 bytes"):
        Call(loop, "space", _full, timeout_s=20).wait()


def _full() -> None:
    raise NotEnoughSpace("there are 3 bytes")


@pytest.mark.processes
def test_a_call_that_hangs_is_abandoned_and_says_so() -> None:
    loop = Loop()
    with pytest.raises(StorageError, match=r"look: no answer within 0\.05 s"):
        Call(loop, "look", signal.pause, timeout_s=0.05).wait()


@pytest.mark.processes
def test_a_limit_of_silence_that_was_renewed_is_waited_for_anew() -> None:
    reader, writer = os.pipe()
    loop = Loop()
    call = Call(loop, "copy", _read_one, reader, timeout_s=60, renewed=True)
    call._overdue()  # as when the limit has passed since the start, and bytes have moved meanwhile
    assert not call.finished
    os.write(writer, b"x")
    assert call.wait() == 1
    with pytest.raises(StorageError, match=r"copy: nothing moved for 0\.05 s"):
        Call(loop, "copy", time.sleep, 100, timeout_s=0.05, renewed=True).wait()
    os.close(reader)
    os.close(writer)


def _read_one(descriptor: int) -> int:
    return len(os.read(descriptor, 1))


@pytest.mark.processes
def test_two_calls_run_side_by_side_and_one_tells_when_it_is_done() -> None:
    loop = Loop()
    told: list[Call] = []
    slow = Call(loop, "slow", time.sleep, 100, timeout_s=100)
    Call(loop, "quick", os.getpid, timeout_s=20).then(told.append)
    assert loop.until(lambda: bool(told), 20)
    assert told[0].result() != os.getpid()
    slow.abandon()
    slow.abandon()
    assert slow.finished


@pytest.mark.processes
def test_a_child_keeps_nothing_of_ours_open() -> None:
    loop = Loop()
    reader, writer = os.pipe()
    loop.watch(reader, lambda: None)
    loop.private.append(writer)
    for descriptor in (reader, writer):
        with pytest.raises(StorageError, match="Bad file descriptor"):
            Call(loop, "look", _size, descriptor, timeout_s=20).wait()
    os.close(reader)
    os.close(writer)


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


@pytest.mark.processes
def test_a_child_dies_with_its_parent() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        call = Call(Loop(), "sleep", time.sleep, 100, timeout_s=100)
        os.write(writer, str(call._call.pid).encode())
        os._exit(0)
    os.close(writer)
    child = os.pidfd_open(int(os.read(reader, 20)))
    os.waitpid(pid, 0)
    import select

    assert select.select([child], [], [], 20)[0], "the child lives on"
    os.close(child)
    os.close(reader)


FRAMEWORK = Framework(name="fake", folder="/nowhere", launcher="ranks", command=("true",))


class Crowd:
    """Stands in for the node programs: those in `answering` tell how they are when asked."""

    def __init__(self, count: int, answering: set[int]) -> None:
        self.all = [NodeHandle(index, Node(name=f"n{index}", hostname="h", address="127.0.0.1")) for index in range(count)]
        self.answering = answering

    def present(self) -> list[NodeHandle]:
        return self.all

    def forget(self, *kinds: type[reports.Message]) -> None:
        for node in self.all:
            node.forget(*kinds)

    def send(self, node: NodeHandle, order: Checkpoint) -> None:
        """The wish for a checkpoint."""

    def send_all(self, order: ReportRanks) -> None:
        for index in self.answering:
            self.all[index].note(reports.RankReport(ranks=()))


ECHO = "RuntimeError: Connection closed by peer [10.0.0.1]:1"


def ended(rank: int, code: int, text: str = "", moment: float = 100.0, now: float = 100.0) -> reports.Exited:
    end = RankEnd(ranks=(rank,), host=f"n{rank}", exit_code=code, time=moment, last_lines=text)
    return reports.Exited(end=end, now=now)


QUICK = AttemptLimits(other_failures_s=0.01, cause_search_s=0.1)


PATIENT = AttemptLimits(other_failures_s=0.01, cause_search_s=1000.0)


def watch(
    count: int, answering: set[int], launcher: str = "ranks", checkpoint: bool = True, limits: AttemptLimits = QUICK
) -> tuple[Loop, Training, list[Ending]]:
    loop = Loop()
    endings: list[Ending] = []
    nodes = cast(Nodes, Crowd(count, answering))
    framework = replace(FRAMEWORK, launcher=launcher, checkpoint=checkpoint)
    return loop, Training(RunScope(loop, limits), nodes, count, ProgressLine(1, None, 0.0), framework, endings.append), endings


def test_training_ends_well_when_all_ranks_do() -> None:
    _, training, endings = watch(2, {0, 1})
    training.rank_ended(ended(1, 0))
    assert not training.finished
    training.rank_ended(ended(0, 0))
    assert training.finished
    assert endings == []


@pytest.mark.parametrize(
    ("launcher", "end", "saved"),
    [
        ("ranks", {"exit_code": 43, "checkpoint": 7}, (7, None)),
        ("torchrun", {"exit_code": 1, "checkpoint": 7}, (7, None)),  # which tells no exit code of a rank
        ("torchrun", {"exit_code": 1, "checkpoint": 7, "failed_rank": 1, "error_kind": "error", "error_message": ECHO}, (7, None)),
        (
            "torchrun",
            {"exit_code": 1, "checkpoint": 7, "failed_rank": 0, "error_kind": "error"},
            (None, "rank 0 on n0 ended with exit code 1"),
        ),
        ("torchrun", {"exit_code": 1}, (None, "rank 0 on n0 ended with exit code 1")),
        ("ranks", {"exit_code": 1, "checkpoint": 7}, (None, "rank 0 on n0 ended with exit code 1")),
    ],
)
def test_a_checkpoint_that_was_asked_for(launcher: str, end: dict[str, Any], saved: tuple[int | None, str | None]) -> None:
    _, training, endings = watch(2, {0, 1}, launcher)
    told: list[tuple[int | None, str | None]] = []
    assert training.save(lambda step, why: told.append((step, why))) is None
    training.rank_ended(reports.Exited(end=RankEnd(ranks=(0, 1), host="n0", time=100.0, **end), now=100.0))
    assert told == [saved]
    assert endings == []


def test_a_framework_that_writes_no_checkpoint_is_asked_for_none() -> None:
    _, training, _ = watch(1, {0}, checkpoint=False)
    assert training.save(lambda _step, _why: pytest.fail("nobody was asked")) == "'fake' writes none"


def test_an_echo_waits_for_its_cause() -> None:
    loop, training, endings = watch(2, {0, 1}, limits=PATIENT)
    training.rank_ended(ended(0, 1, ECHO))
    loop.until(lambda: bool(endings), 0.05)
    assert endings == []
    training.rank_ended(ended(1, -9))
    assert loop.until(lambda: bool(endings), 10)
    assert endings[0].status == "killed"
    assert not training.finished


@pytest.mark.parametrize(("count", "status", "words"), [(3, "node_lost", "n2 did not answer"), (2, "error", "rank 0 on n0")])
def test_echoes_alone_mean_that_a_node_which_does_not_answer_is_lost_or_are_an_error_in_the_end(
    count: int, status: str, words: str
) -> None:
    loop, training, endings = watch(count, {0, 1})
    for rank in range(count - 1):
        training.rank_ended(ended(rank, 1, ECHO))
    assert loop.until(lambda: bool(endings), 10)
    assert endings[0].status == status
    assert str(endings[0].reason).startswith(words)


def test_clocks_that_differ_do_not_change_who_was_first() -> None:
    loop, training, endings = watch(2, {0, 1})
    training.rank_ended(ended(1, 7, moment=5000.0, now=5000.0))  # its clock is far ahead
    loop.until(lambda: False, 0.005)
    training.rank_ended(ended(0, 3, moment=100.0, now=100.0))
    assert loop.until(lambda: bool(endings), 10)
    assert "rank 1" in str(endings[0].reason)


@pytest.mark.processes
def test_a_signal_leaves_a_push_some_time_and_tells_its_end() -> None:
    loop, told = Loop(), list[reports.Report]()
    work = NodeWork(loop, 0, b"", told.append, lambda: "", cancelled_push_s=0.05)
    work.pushing = Call(loop, "push", time.sleep, 100, timeout_s=100)
    work.end_requested()
    assert work.pushing is not None
    assert loop.until(lambda: bool(told), 20)
    (failed,) = told
    assert isinstance(failed, reports.Failed)
    assert (failed.during, work.pushing) == ("push", None)
    assert "was told to end" in failed.message


@pytest.mark.processes
def test_a_push_that_is_done_in_that_time_is_told_as_such() -> None:
    loop, told = Loop(), list[reports.Report]()
    work = NodeWork(loop, 0, b"", told.append, lambda: "")
    work.pushing = Call(loop, "push", list, timeout_s=20).then(work._pushed)
    work.end_requested()
    assert loop.until(lambda: bool(told), 20)
    assert told == [reports.Pushed(files=())]
