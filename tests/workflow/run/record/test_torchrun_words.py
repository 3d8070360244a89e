"""The rank that failed first below a torchrun, in what PyTorch 2.13's printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflow.run.record.events import Event
from workflow.run.record.outcome import RankEnd, first_failed, root_cause, verdict

CAPTURED = Path(__file__).parents[3] / "captured" / "torchrun-2.13"
ECHO: Event = {"message": "RuntimeError: Connection closed by peer [127.0.0.1]:1", "time": 1.0}
CAUSE: Event = {"message": "ValueError: no", "time": 2.0}
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
def test_the_rank_that_failed_first(code: int, text: str, errors: dict[int, Event], found: tuple[int | None, int]) -> None:
    assert first_failed(code, text, (0, 1), errors) == found


def test_a_torchrun_that_failed_itself_is_named_and_no_rank() -> None:
    end = RankEnd(ranks=(2, 3), host="n1", exit_code=-9, time=1.0, launcher="torchrun", last_lines="step 5")
    ending = root_cause([end])
    assert ending is not None
    assert ending.reason is not None
    assert ending.reason.startswith("torchrun on n1 was killed from outside by SIGKILL")
    named = {"rank": None, "host": "n1", "exit_code": None, "signal": "SIGKILL", "last_lines": "step 5", "sidecar": "torchrun"}
    assert ending.failed_rank() == named


def test_what_other_ranks_print_is_no_word_of_the_one_that_exits() -> None:
    end = RankEnd(ranks=(0, 1), host="n0", exit_code=3, time=1.0, failed_rank=1, last_lines=str(ECHO["message"]))
    found = verdict(end)
    assert found is not None
    assert found.weight == 1
    plain = verdict(end._replace(exit_code=1))
    assert plain is not None
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
    assert found is not None
    assert found.what == f"ended with exit code {code}{words}"
