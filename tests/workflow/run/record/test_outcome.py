"""How runs end: a test per row, and which of many failures is the first."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from base import errors
from base.jsonfile import canonical_json
from data_prep.reader.loaders import Loaders
from workflow.run.record.events import ErrorEvent, RankEvents, RunStart, RunStop, parse_events
from workflow.run.record.model import FailedRank, Status
from workflow.run.record.outcome import (
    TABLE,
    Ending,
    RankEnd,
    RankState,
    contradiction,
    first_failed,
    hang,
    judge_missing,
    only_consequences,
    other_device,
    root_cause,
    verdict,
)
from workflow.run.record.run_record import measured


def end(rank: int = 0, code: int | None = 0, time: float = 100.0, **fields: Any) -> RankEnd:
    return RankEnd(ranks=(rank,), host=f"n{rank}", exit_code=code, time=time, **fields)


def test_the_table_has_these_rows_and_no_other() -> None:
    assert tuple(TABLE) == get_args(Status)


def test_a_program_that_ends_early_is_told_from_one_that_reports_nothing() -> None:
    assert "reported no step: call slipway_events" in str(verdict(end(code=0, run_stop=False)))
    assert "no step: in its events file 2 lines are no events: let slipway" in str(verdict(end(code=0, run_stop=False, broken_lines=2)))
    assert "it left its steps early, after step 7: bye" in str(verdict(end(code=0, run_stop=False, last_step=7, last_lines="bye")))


def test_a_more_exact_error_gives_its_own_code_but_never_to_a_result() -> None:
    assert Ending(status="storage", error=errors.PushError).exit_code == 18
    assert Ending(status="error", error=errors.PushError).exit_code == 0


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (end(code=0), None),
        (end(code=0, run_stop=False), "error"),
        (end(code=0, wrong_clock="tells of 1 s"), "error"),
        (end(code=3), "error"),
        (end(code=41), "oom"),
        (end(code=1, error_kind="oom"), "oom"),
        (end(code=1, last_lines="Traceback (most recent\nRuntimeError: CPUAllocator: can't allocate memory: you tried"), "oom"),
        (end(code=1, last_lines="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (end(code=1, last_lines="Traceback (most recent\nMemoryError\nTraceback (most recent\nKeyError: 1"), "error"),
        (end(code=1, last_lines="Traceback (most recent\nMemoryError"), "oom"),
        (end(code=1, last_lines="Traceback (most recent\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 TiB"), "oom"),
        (end(code=1, last_lines="[rank0]: MemoryError"), "oom"),
        (end(code=1, last_lines="Traceback (most recent\nAttributeError: module 'torch' has no attribute 'OutOfMemoryError'"), "error"),
        (end(code=-9, oom_kill=True), "oom"),
        (end(code=-9), "killed"),
        (end(code=-15), "killed"),
        (end(code=-11), "error"),
        (end(code=-11, oom_kill=True), "error"),
        (end(code=1, oom_kill=True, error_message="DataLoader worker (pid 7) is killed by signal: Killed."), "oom"),
        (end(code=1, oom_kill=True, error_message="RuntimeError: Connection closed by peer"), "oom"),
        (end(code=1, oom_kill=True, error_message="ValueError: x"), "error"),
        (end(code=42, oom_kill=True), "nan"),
        (end(code=0, oom_kill=True), None),
        (end(code=-6), "error"),
        (end(code=44), "storage"),
        (end(code=44, oom_kill=True), "storage"),
        (end(code=1, error_kind="storage"), "storage"),
        (end(code=-7), "storage"),
        (end(code=45), "killed"),
        (end(code=45, oom_kill=True), "oom"),
        (end(code=1, error_kind="killed"), "killed"),
        (end(code=1, error_message="RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."), "killed"),
        (end(code=1, error_message="RuntimeError: DataLoader worker (pid 7) is killed by signal: Segmentation fault."), "error"),
        (end(code=42), "nan"),
        (end(code=1, error_kind="nan"), "nan"),
    ],
)
def test_what_the_end_of_a_rank_means(ended: RankEnd, status: str | None) -> None:
    said = verdict(ended)
    assert (said and said.status) == status


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (end(code=42, error_message="loss is nan at step 3"), "met a loss that is not a number: loss is nan at step 3"),
        (end(code=45), "lost a process of its own to a signal from outside, without a sign of missing memory"),
        (end(code=-11), "died of SIGSEGV"),
    ],
)
def test_the_words_for_the_end_of_a_rank(ended: RankEnd, words: str) -> None:
    assert root_cause([ended]).reason == f"rank 0 on n0 {words}"


class Killed:
    """Batches whose loader process is killed."""

    def __init__(self, by: int) -> None:
        self.by = by

    def fill(self, *_: object) -> tuple[int, int]:
        os.kill(os.getpid(), self.by)
        return 1, 0


@pytest.mark.processes
@pytest.mark.parametrize(("by", "status"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "killed"), (signal.SIGUSR1, "error")])
def test_what_the_end_of_a_loader_process_of_the_reader_means(by: int, status: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        list(Loaders(Killed(by), 1, 1, (1, 1), np.uint8).batches())
    said = verdict(end(code=1, error_kind="error", error_message=f"RuntimeError: {caught.value}"))
    assert said is not None
    assert said.status == status


def test_the_reason_names_rank_host_and_cause() -> None:
    ending = root_cause([end(0), end(1, 3, error_message="ValueError: no", last_lines="boom")])
    assert ending.reason == "rank 1 on n1 ended with exit code 3: ValueError: no"
    assert msgspec.to_builtins(ending.failed_rank()) == {"rank": 1, "host": "n1", "exit_code": 3, "signal": None, "last_lines": "boom"}
    killed = root_cause([end(1, -9)])
    assert killed.failed_rank() == FailedRank(rank=1, host="n1", signal="SIGKILL", last_lines="")


def test_a_sidecar_is_named_as_the_cause_and_never_as_a_rank() -> None:
    sidecar = RankEnd(ranks=(), host="n1", exit_code=3, time=99.0, last_lines="no room", sidecar="server")
    ending = root_cause([end(0, 3), sidecar])
    assert ending.reason == "sidecar server on n1 ended with exit code 3: no room"
    failed = {"rank": None, "host": "n1", "exit_code": 3, "signal": None, "last_lines": "no room", "sidecar": "server"}
    assert msgspec.to_builtins(ending.failed_rank()) == failed
    early = verdict(sidecar._replace(exit_code=0, last_lines=""))
    assert early.what == "ended with exit code 0 while ranks were running"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/c/x'",
            "make room in the node's cache (`slipway cache ls`, `slipway cache rm NAME`)",
        ),
        ("OSError: [Errno 5] Input/output error", "the node's disk fails: look at the node's kernel log"),
        ("DatasetChanged: /c/d/shard-00001.lmdb cannot be opened (No such file): stage", "keep cleaners off it"),
    ],
)
def test_what_a_disk_did_is_told_with_what_to_do(message: str, words: str) -> None:
    ending = root_cause(
        [end(0, 1, 1.0, last_lines="Connection reset by peer"), end(1, 44, 2.0, error_kind="storage", error_message=message)]
    )
    assert (ending.status, ending.kind, ending.exit_code) == ("storage", "prevented", 22)
    assert ending.reason.startswith(f"rank 1 on n1 could not read its dataset or write its files: {message}; ")
    assert words in ending.reason


ELSEWHERE = "OSError: [Errno 30] Read-only file system: '/elsewhere/x'"
ADVICE = "a program may write to SLIPWAY_OUT ({out}, where it starts) and to mounts with `writable: true`, not to its folder"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"error_kind": "error", "error_message": ELSEWHERE}, f"{ELSEWHERE}; {ADVICE}"),
        ({"last_lines": f"step 3\nTraceback (most recent call last):\n  File x\n{ELSEWHERE}"}, f"{ELSEWHERE}; {ADVICE}"),
        ({"last_lines": "sh: 1: cannot create /x: Read-only file system"}, f"sh: 1: cannot create /x: Read-only file system; {ADVICE}"),
        ({"last_lines": "sh: 1: cannot create /x: Permission denied"}, f"Permission denied; if it was to be written to: {ADVICE}"),
        ({"last_lines": "no such key"}, "ended with exit code 1: no such key"),
    ],
)
def test_a_program_that_writes_where_it_may_not_is_told_where_it_may(told: dict[str, Any], words: str) -> None:
    ending = root_cause([end(0, 1, **told)])
    assert ending.status == "error"
    assert ending.reason.endswith(words)


def test_all_well_is_no_ending() -> None:
    assert root_cause([end(0), end(1)]) is None


RESET = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


@pytest.mark.parametrize(
    ("ends", "rank"),
    [
        ([end(0, 1, 1.0), end(1, 1, 2.0)], 0),  # the first by time
        ([end(0, 1, 1.0, last_lines=RESET), end(1, -9, 2.0)], 1),  # the echo came first
        ([end(0, 1, 1.0, last_lines=RESET), end(1, 5, 2.0)], 1),
        ([end(0, 1, 1.0, error_message=RESET), end(1, 1, 2.0, error_message="ValueError", last_lines=RESET)], 1),
        ([end(0, 1, 1.0), end(1, -9, 1.2)], 1),  # a signal before a plain exit
        ([end(0, 1, 1.0), end(1, 41, 1.2)], 1),
        ([end(0, -6, 1.0, last_lines=RESET), end(1, 3, 1.5)], 1),  # abort() because of a lost peer
        ([end(0, -6, 1.0), end(1, 3, 1.5)], 0),
        ([end(0, 1, 1.0, last_lines=RESET, oom_kill=True), end(1, -9, 2.0, oom_kill=True)], 1),  # beside one that memory failed
        ([end(0, 1, 1.0, last_lines=RESET), end(1, 1, 2.0, last_lines=RESET)], 0),  # nothing but echoes: the first
        ([end(0, 1, 1.0, last_lines="ncclRemoteError: A call failed possibly due to a network error"), end(1, -7, 2.0)], 1),
    ],
)
def test_the_cause_is_named_and_not_its_echo(ends: list[RankEnd], rank: int) -> None:
    ending = root_cause(ends)
    assert ending.rank_end.rank == rank


def test_echoes_alone_are_known_as_such() -> None:
    assert only_consequences([end(0), end(1, 1, last_lines=RESET)])
    assert not only_consequences([end(1, 1, last_lines=RESET), end(0, 1)])


def look(rank: int, **changes: Any) -> RankState:
    known = RankState(rank=rank, host="n0", phase="train", step=7, silent_s=61.0, limit_s=60.0, state="S", last_lines="")
    return replace(known, **changes)


@pytest.mark.parametrize(
    ("looks", "rank"),
    [
        ([look(0), look(1, state="T", silent_s=60.5)], 1),
        ([look(0), look(1, step=6)], 1),
        ([look(0), look(1, step=None)], 1),
        ([look(0), look(1, silent_s=62.0)], 1),
    ],
)
def test_the_rank_that_hangs_is_named(looks: list[RankState], rank: int) -> None:
    ending = hang(looks)
    assert ending.status == "hang"
    assert ending.reason.startswith(f"rank {rank} on n0 has said nothing for ")
    failed = ending.failed_rank()
    assert (failed.rank, failed.exit_code, failed.signal) == (rank, None, None)


def test_a_stopped_rank_is_called_stopped() -> None:
    assert "its process is stopped (state T)" in str(hang([look(0, state="T")]).reason)
    assert "has written no event" in str(hang([look(0, phase=None)]).reason)


def test_a_process_of_several_ranks_names_the_one_that_wrote_of_an_error() -> None:
    ended = RankEnd(ranks=(4, 5, 6), host="n1", exit_code=1, time=1.0, failed_rank=5)
    assert ended.rank == 5
    assert ended._replace(failed_rank=None).rank == 4


def test_every_signal_has_a_name() -> None:
    ending = root_cause([end(0, -int(signal.SIGRTMIN) - 1)])
    assert ending.failed_rank().signal == f"signal {int(signal.SIGRTMIN) + 1}"  # type: ignore[index]


# What nodes lack of a program: where none has it, that is a result; where some have it, the others are at fault.


LACKS = "/opt/python, the `python` of the program 'gpt', is not there: it must be on all nodes"


def test_a_program_that_is_on_no_node() -> None:
    ending = judge_missing({"n1": LACKS, "n2": LACKS}, 2)
    assert (ending.status, ending.kind, ending.reason) == ("error", "result", f"{LACKS} (on all nodes)")
    assert judge_missing({"n1": LACKS}, 1).reason == f"{LACKS} (on n1)"


def test_a_program_that_is_on_some_nodes_only() -> None:
    ending = judge_missing({"n2": LACKS}, 3)
    assert (ending.kind, ending.exit_code) == ("prevented", 24)
    assert ending.reason == f"{LACKS} (on n2; other nodes of the run have it)"


# What must lie on storage of a run that ended `ok`.


def test_every_rank_has_begun_and_ended_in_what_was_pushed() -> None:
    whole = RankEvents(start=RunStart(parameters=7), stop=RunStop(norm=1.5))
    assert contradiction({0: whole, 1: whole}, 2, ("lenet", 7)) is None
    assert contradiction({0: whole, 1: whole}, 2, None) is None
    found = contradiction({0: whole}, 2, None)
    assert found.startswith("rank 1 ended well, and there is no events-1.jsonl among what could be pushed")
    torn = {0: whole, 1: RankEvents(start=RunStart(parameters=7))}
    assert "events-1.jsonl was pushed without run_stop:" in str(contradiction(torn, 2, None))
    assert "events-0.jsonl was pushed without run_start and run_stop:" in str(measured({0: RankEvents()}, 1, 2).contradiction)
    assert "another network" in str(contradiction({0: whole}, 1, ("lenet", 8)))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"world_size": 2, "rank": 1, "device": "cuda:1"}, None),
        ({}, None),
        ({"world_size": 1}, "rank 1 tells of 1 ranks in all, and the run has 2: they did not work together"),
        ({"rank": 0}, "events-1.jsonl was written by rank 0"),
        ({"device": "cpu"}, "rank 1 computed on cpu, as it tells, and the run's device is cuda"),
    ],
)
def test_a_rank_that_was_elsewhere_makes_no_result(told: dict[str, Any], words: str | None) -> None:
    """Two processes that never met do twice the work of one: a speed-up of exactly 2."""
    good = RankEvents(start=RunStart(world_size=2, rank=0, device="cuda"), stop=RunStop(norm=1.5))
    events = {0: good, 1: RankEvents(start=RunStart(**told), stop=RunStop(norm=1.5))}
    found = contradiction(events, 2, None) or other_device(events, "cuda")
    assert str(words) in str(found)


def test_one_process_may_work_for_all_ranks_if_it_says_so() -> None:
    alone = RankEvents(start=RunStart(world_size=2, rank=0, drives_all=True), stop=RunStop(norm=1.5))
    assert contradiction({0: alone}, 2, None) is None
    beside = {0: alone, 1: RankEvents(start=RunStart(), stop=RunStop(norm=1.5))}
    assert "works for all ranks, and there is an events-1.jsonl" in str(contradiction(beside, 2, None))
    assert "tells of 2 ranks in all, and the run has 1" in str(contradiction({0: alone}, 1, None))


def test_what_run_start_tells_of_rank_and_device_is_read() -> None:
    lines = b'{"event": "run_start", "rank": 3, "device": "cpu"}\n{"event": "run_stop"}\n'
    assert "written by rank 3" in str(measured({0: parse_events([*lines.splitlines(keepends=True)])}, 1, 8).contradiction)
    assert "written" not in str(measured({0: parse_events([b'{"event": "run_start", "rank": "x"}\n'])}, 1, 8).contradiction)


@pytest.mark.parametrize("loss", ["NaN", "-Infinity", "1e999"])
def test_a_loss_that_is_not_finite_is_no_result(loss: str) -> None:
    """A step of NaN may take as long as any other: a table would show its rate as that of a training."""
    events = rank_with(*(_step(step, "0.5" if step < 7 else loss) for step in range(9)))
    assert str(contradiction(events, 1, None)).endswith("tells that the loss of its step 7 is NaN or infinite")
    assert [step.loss for step in events[0].steps.values()] == [0.5] * 7 + [None] * 2
    canonical_json(msgspec.to_builtins(measured(events, 1, 8)))


@pytest.mark.parametrize("told", ["-5", "0.5", "1e999", '"eight"', "NaN", "true"])
@pytest.mark.parametrize("key", ["samples", "tokens"])
def test_a_number_of_samples_that_is_none_is_no_result(key: str, told: str) -> None:
    """The batch of the cell would count in its place, which the rank may not have done."""
    steps = [_step(step, "0.5").replace('"samples": 8', f'"{key}": {told}' if step == 4 else f'"{key}": 8.0') for step in range(9)]
    found = str(contradiction(rank_with(*steps), 1, None))
    assert found.startswith("rank 0 tells of ")
    assert found.endswith(f" {key} in its step 4: expected a whole number from 0 on, or nothing where it does not know")


@pytest.mark.parametrize(
    ("told", "source", "assumed"), [("null", "program", ["samples"]), ("0", "program", []), ("null", "log", ["samples"]), ("8", "log", [])]
)
def test_samples_that_no_rank_reports_are_assumed(told: str, source: str, assumed: list[str]) -> None:
    steps = [_step(step, "0.5").replace('"samples": 8', f'"samples": {told}') for step in range(9)]
    events = rank_with(*steps, start=f'{{"event": "run_start", "steps_source": "{source}"}}')
    assert contradiction(events, 1, None) is None
    assert measured(events, 1, 8).performance.assumed == tuple(assumed)


def rank_with(*steps: str, start: str = '{"event": "run_start"}') -> dict[int, RankEvents]:
    """Rank 0, which wrote these lines between its start and its end."""
    return {0: parse_events([f"{line}\n".encode() for line in (start, *steps, '{"event": "run_stop"}')])}


def _step(step: int, loss: str) -> str:
    return f'{{"event": "step", "step": {step}, "seconds": 0.5, "measured": true, "samples": 8, "loss": {loss}}}'


# The rank that failed first below a torchrun, in what PyTorch 2.13's printed.


CAPTURED = Path(__file__).parents[3] / "captured" / "torchrun-2.13"
ECHO = ErrorEvent(message="RuntimeError: Connection closed by peer [127.0.0.1]:1", time=1.0)
CAUSE = ErrorEvent(message="ValueError: no", time=2.0)
OLD = """
*****************************************
Root Cause:
[0]:
  time: 2021-09-01_11:29:25
  rank: 1 (local_rank: 1)
  exitcode: 3 (pid: 2187)
  error_file: <N/A>
  msg: "Process failed with exitcode 3"
========================================
Other Failures:
[1]:
  time: 2021-09-01_11:29:25
  rank: 0 (local_rank: 0)
  exitcode: 1 (pid: 2186)
"""
"""As PyTorch 1.9 has it in its source."""


def said(name: str) -> str:
    return (CAPTURED / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("code", "text", "errors", "found"),
    [
        (1, said("exit"), {}, (1, 3)),
        (1, said("kill"), {}, (1, -9)),
        (1, said("both"), {}, (1, -9)),  # torchrun itself names rank 0, whose connection was closed
        (1, said("both"), {0: ECHO}, (1, -9)),
        (1, said("both"), {0: CAUSE}, (0, 1)),
        (1, OLD, {}, (1, 3)),
        (1, said("term"), {0: ECHO}, (None, -15)),  # torchrun was told to end, and its ranks with it
        (1, "SignalException: Process 7 got signal: Signals.SIGINT\n", {}, (None, -2)),
        (-9, said("exit"), {0: ECHO}, (None, -9)),
        (1, "No module named torch\n", {}, (None, 1)),
        (1, "in words of another version\n", {0: ECHO, 1: CAUSE}, (1, 1)),
        (1, said("exit").replace("rank      : 1", "rank      : 999"), {}, (0, -15)),  # a program prints what it likes
        (1, "SignalException: Process 7 got signal: SIGNOTHING\n", {}, (None, 1)),
    ],
)
def test_the_rank_that_failed_first(code: int, text: str, errors: dict[int, ErrorEvent], found: tuple[int | None, int]) -> None:
    assert first_failed(code, text, (0, 1), errors) == found


def test_a_torchrun_that_failed_itself_is_named_and_no_rank() -> None:
    end = RankEnd(ranks=(2, 3), host="n1", exit_code=-9, time=1.0, launcher="torchrun", last_lines="step 5")
    ending = root_cause([end])
    assert ending.reason.startswith("torchrun on n1 was killed from outside by SIGKILL")
    named = {"rank": None, "host": "n1", "exit_code": None, "signal": "SIGKILL", "last_lines": "step 5", "sidecar": "torchrun"}
    assert msgspec.to_builtins(ending.failed_rank()) == named


def test_what_other_ranks_print_is_no_word_of_the_one_that_exits() -> None:
    end = RankEnd(ranks=(0, 1), host="n0", exit_code=3, time=1.0, failed_rank=1, last_lines=str(ECHO.message))
    found = verdict(end)
    assert found.weight == 1
    plain = verdict(end._replace(exit_code=1))
    assert plain.weight == 2


@pytest.mark.parametrize(
    ("code", "lines", "words"),
    [
        (3, "no licence\nTraceback (most recent call last):\n  File x\nConnectionError: Connection closed by peer", ": no licence"),
        (3, "  File x\nConnectionError: Connection closed by peer", ""),
        (1, "Traceback (most\nValueError: no\nTraceback (most\nConnectionError: Connection closed by peer", ": ValueError: no"),
    ],
)
def test_the_words_of_the_rank_that_failed_are_found_among_those_of_others(code: int, lines: str, words: str) -> None:
    found = verdict(RankEnd(ranks=(2, 3), host="n1", exit_code=code, time=1.0, failed_rank=3, last_lines=lines))
    assert found.what == f"ended with exit code {code}{words}"
