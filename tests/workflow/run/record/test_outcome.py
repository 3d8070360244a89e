"""How runs end: a test per row, and which of many failures is the first."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any, get_args

import pytest

from base import errors
from workflow.run.record.outcome import TABLE, Ending, RankEnd, RankState, Status, hang, only_consequences, root_cause, verdict


def end(rank: int = 0, code: int | None = 0, time: float = 100.0, **fields: Any) -> RankEnd:
    return RankEnd(ranks=(rank,), host=f"n{rank}", exit_code=code, time=time, **fields)


@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [
        ("ok", "result", 0),
        ("oom", "result", 0),
        ("nan", "result", 0),
        ("timeout", "result", 0),
        ("hang", "result", 0),
        ("error", "result", 0),
        ("killed", "prevented", 23),
        ("node_lost", "prevented", 24),
        ("storage", "prevented", 22),
        ("preempted", "prevented", 25),
        ("cancelled", "prevented", 26),
    ],
)
def test_a_row_of_the_table(status: str, kind: str, exit_code: int) -> None:
    ending = Ending(status=status)
    assert (ending.kind, ending.exit_code) == (kind, exit_code)


def test_the_table_has_these_rows_and_no_other() -> None:
    assert tuple(TABLE) == get_args(Status)
    with pytest.raises(ValueError, match="failed"):
        Ending(status="failed")


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
        (end(code=1, error_kind="error", error_message="ValueError: x"), "error"),
    ],
)
def test_what_the_end_of_a_rank_means(ended: RankEnd, status: str | None) -> None:
    said = verdict(ended)
    assert (said and said.status) == status


def test_the_reason_names_rank_host_and_cause() -> None:
    ending = root_cause([end(0), end(1, 3, error_message="ValueError: no", last_lines="boom")])
    assert ending is not None
    assert ending.reason == "rank 1 on n1 ended with exit code 3: ValueError: no"
    assert ending.failed_rank() == {"rank": 1, "host": "n1", "exit_code": 3, "signal": None, "last_lines": "boom"}
    killed = root_cause([end(1, -9)])
    assert killed is not None
    assert killed.failed_rank() == {"rank": 1, "host": "n1", "exit_code": None, "signal": "SIGKILL", "last_lines": ""}


def test_a_sidecar_is_named_as_the_cause_and_never_as_a_rank() -> None:
    sidecar = RankEnd(ranks=(), host="n1", exit_code=3, time=99.0, last_lines="no room", sidecar="server")
    ending = root_cause([end(0, 3), sidecar])
    assert ending is not None
    assert ending.reason == "sidecar server on n1 ended with exit code 3: no room"
    failed = {"rank": None, "host": "n1", "exit_code": 3, "signal": None, "last_lines": "no room", "sidecar": "server"}
    assert ending.failed_rank() == failed
    early = verdict(sidecar._replace(exit_code=0, last_lines=""))
    assert early is not None
    assert early.what == "ended with exit code 0 while ranks were running"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("OSError: [Errno 28] No space left on device: '/c/x'", "make room in the node's cache"),
        ("OSError: [Errno 5] Input/output error", "the node's disk fails: look at the node's kernel log"),
        ("DatasetChanged: /c/d/shard-00001.lmdb cannot be opened (No such file): stage", "keep cleaners off it"),
    ],
)
def test_what_a_disk_did_is_told_with_what_to_do(message: str, words: str) -> None:
    ending = root_cause(
        [end(0, 1, 1.0, last_lines="Connection reset by peer"), end(1, 44, 2.0, error_kind="storage", error_message=message)]
    )
    assert ending is not None
    assert (ending.status, ending.kind, ending.exit_code) == ("storage", "prevented", 22)
    assert ending.reason is not None
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
    assert ending is not None
    assert ending.status == "error"
    assert ending.reason is not None
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
    assert ending is not None
    assert ending.rank_end is not None
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
    assert ending.reason is not None
    assert ending.reason.startswith(f"rank {rank} on n0 has said nothing for ")
    failed = ending.failed_rank()
    assert failed is not None
    assert (failed["rank"], failed["exit_code"], failed["signal"]) == (rank, None, None)


def test_a_stopped_rank_is_called_stopped() -> None:
    assert "its process is stopped (state T)" in str(hang([look(0, state="T")]).reason)
    assert "has written no event" in str(hang([look(0, phase=None)]).reason)


def test_a_process_of_several_ranks_names_the_one_that_wrote_of_an_error() -> None:
    ended = RankEnd(ranks=(4, 5, 6), host="n1", exit_code=1, time=1.0, failed_rank=5)
    assert ended.rank == 5
    assert ended._replace(failed_rank=None).rank == 4


def test_every_signal_has_a_name() -> None:
    ending = root_cause([end(0, -int(signal.SIGRTMIN) - 1)])
    assert ending is not None
    assert ending.failed_rank()["signal"] == f"signal {int(signal.SIGRTMIN) + 1}"  # type: ignore[index]
