"""Calls with a limit: results, our errors, foreign errors, hangs, sudden death."""

from __future__ import annotations

import gc
import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from base.calls import LimitedCall, call_limited, moved
from base.errors import Defect, DigestMismatch, SlipwayError, StorageError

pytestmark = pytest.mark.processes
ENOUGH_S = 120  # of calls that answer at once: a machine that stands still for some seconds must not end them


def fail(error: Exception) -> None:
    raise error


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_result_travels() -> None:
    assert call_limited("adding", lambda a, b: {"sum": a + b}, 2, 3, timeout_s=ENOUGH_S) == {"sum": 5}


def test_a_large_result_travels() -> None:
    assert len(call_limited("many", lambda: "x" * 3_000_000, timeout_s=ENOUGH_S)) == 3_000_000


def test_our_errors_keep_their_class() -> None:
    with pytest.raises(DigestMismatch, match="chunk 3"):
        call_limited("hashing", fail, DigestMismatch("chunk 3"), timeout_s=ENOUGH_S)


def test_an_os_error_is_one_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file or directory"):
        call_limited("listing", lambda: list((tmp_path / "missing").iterdir()), timeout_s=ENOUGH_S)


def test_an_error_that_should_never_be_is_a_defect_of_ours_with_its_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Defect, match="dividing: ZeroDivisionError: division by zero: this is a defect of Slipway, not of the storage"):
        call_limited("dividing", lambda: 1 / 0, timeout_s=ENOUGH_S)
    assert "Traceback (most recent call last)" in caplog.text
    assert "test_limited.py" in caplog.text


def test_memory_that_ran_out_is_no_defect_of_ours() -> None:
    with pytest.raises(SlipwayError, match="MemoryError: no room") as caught:
        call_limited("growing", fail, MemoryError("no room"), timeout_s=ENOUGH_S)
    assert type(caught.value) is SlipwayError


def compute_for_ever() -> None:
    while True:
        pass


def test_a_hang_ends_at_the_limit_and_is_no_storage_that_hangs_where_it_computes() -> None:
    with pytest.raises(StorageError, match=r"reading the study: no answer within 0\.5 s; the storage behind it hangs"):
        call_limited("reading the study", lambda: signal.pause(), timeout_s=0.5)
    with pytest.raises(StorageError, match=r"reading: no answer within 0\.1 s; its process still computes: it is too much work"):
        call_limited("reading", compute_for_ever, timeout_s=0.1)


def test_bytes_that_move_renew_the_limits_of_all_who_wait_for_them() -> None:
    reader, writer = os.pipe()

    def copy() -> int:
        moved()
        os.read(reader, 1)
        return 7

    call = LimitedCall("outer", lambda: call_limited("inner", copy, timeout_s=60, renewed=True), timeout_s=60, renewed=True)
    begun = call.deadline
    select.select([call], [], [])
    assert not call.done()
    assert call.deadline > begun
    os.write(writer, b"x")
    assert call.wait() == 7
    os.close(reader)
    os.close(writer)


def test_a_child_that_dies_without_an_answer() -> None:
    with pytest.raises(StorageError, match="died without an answer"):
        call_limited("dying", die, timeout_s=ENOUGH_S)


def test_bytes_that_move_renew_a_limit_of_silence() -> None:
    reader, writer = os.pipe()

    def copy() -> int:
        moved()
        os.read(reader, 1)
        return 7

    for renewed in (True, False):
        call = LimitedCall("copying", copy, timeout_s=60, renewed=renewed)
        begun = call.deadline
        if renewed:
            select.select([call], [], [])
            assert not call.done()
        os.write(writer, b"x")
        assert call.wait() == 7
        assert (call.deadline > begun) == renewed
    os.close(reader)
    os.close(writer)


def test_silence_ends_what_has_moved_bytes() -> None:
    def stop() -> None:
        moved()
        signal.pause()

    with pytest.raises(StorageError, match=r"copying: nothing moved for 0\.1 s"):
        call_limited("copying", stop, timeout_s=0.1, renewed=True)
    moved()  # in no child: nothing


def test_what_moved_bytes_and_died_has_no_answer() -> None:
    def stop() -> None:
        moved()
        die()

    with pytest.raises(StorageError, match="died without an answer"):
        call_limited("copying", stop, timeout_s=10, renewed=True)


def test_our_garbage_is_not_the_child_s() -> None:
    class Waits:
        def __del__(self) -> None:
            if os.getpid() != ours:
                signal.pause()  # for a thread that there is not

    def work() -> int:
        return len([[] for _ in range(100_000)])

    ours, before = os.getpid(), gc.get_threshold()
    at_fork = [work]  # as modules do that Python calls in the child before we are asked
    os.register_at_fork(after_in_child=lambda: [call() for call in at_fork])
    gc.set_threshold(10_000)
    try:
        waits: Any = Waits()
        waits.itself = waits
        del waits
        assert call_limited("working", work, timeout_s=10) == 100_000
        assert gc.isenabled()
    finally:
        at_fork.clear()
        gc.set_threshold(*before)
        gc.collect()  # or it would wait in the next test's child
