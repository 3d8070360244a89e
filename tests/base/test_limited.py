"""Calls with a limit: results, our errors, foreign errors, hangs, sudden death."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from base.errors import DigestMismatch, SlipwayError, StorageError
from base.limited import call_limited


def fail(error: Exception) -> None:
    raise error


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_result_travels() -> None:
    assert call_limited("adding", lambda a, b: {"sum": a + b}, 2, 3, timeout_s=10) == {"sum": 5}


def test_a_large_result_travels() -> None:
    assert len(call_limited("many", lambda: "x" * 3_000_000, timeout_s=30)) == 3_000_000


def test_our_errors_keep_their_class() -> None:
    with pytest.raises(DigestMismatch, match="chunk 3"):
        call_limited("hashing", fail, DigestMismatch("chunk 3"), timeout_s=10)


def test_an_os_error_is_one_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file or directory"):
        call_limited("listing", lambda: list((tmp_path / "missing").iterdir()), timeout_s=10)


def test_a_foreign_error_is_named() -> None:
    with pytest.raises(SlipwayError, match="ZeroDivisionError"):
        call_limited("dividing", lambda: 1 / 0, timeout_s=10)


def test_a_hang_ends_at_the_limit() -> None:
    with pytest.raises(StorageError, match=r"reading the study: no answer within 0\.1 s"):
        call_limited("reading the study", lambda: signal.pause(), timeout_s=0.1)


def test_a_child_that_dies_without_an_answer() -> None:
    with pytest.raises(StorageError, match="died without an answer"):
        call_limited("dying", die, timeout_s=10)
