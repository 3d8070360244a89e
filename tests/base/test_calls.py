"""Calls with a limit: results, our errors, foreign errors, hangs, sudden death."""

import fcntl
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from base.calls import LimitedCall, call_isolated, call_limited, moved
from base.errors import Defect, DigestMismatch, SlipwayError, StorageError
from base.process import CODE_ROOT
from tests.base import in_children

pytestmark = pytest.mark.processes
ENOUGH_S = 120  # of calls that answer at once: a machine that stands still for some seconds must not end them


def fail(error: Exception) -> None:
    raise error


def test_the_result_travels() -> None:
    assert call_limited("adding", lambda a, b: {"sum": a + b}, 2, 3, timeout_s=ENOUGH_S) == {"sum": 5}


def test_a_result_travels_over_a_descriptor_of_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ends = os.pipe2(os.O_CLOEXEC)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    try:
        high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 1024) for end in ends)  # as while very many connect to a supervisor
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for end in ends:
            os.close(end)
    monkeypatch.setattr(os, "pipe2", lambda _flags: high)
    assert call_limited("adding", lambda: 2 + 3, timeout_s=ENOUGH_S) == 5


def test_a_large_result_travels() -> None:
    assert len(call_limited("many", lambda: "x" * 3_000_000, timeout_s=ENOUGH_S)) == 3_000_000


def test_an_interrupt_while_python_forks_is_raised() -> None:
    early = [signal.SIGINT]
    this = threading.get_ident()  # pytest-xdist has a second thread, which would take a signal that is sent to the process
    os.register_at_fork(after_in_parent=lambda: early and signal.pthread_kill(this, early.pop()))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_limited("adding", lambda: 2 + 3, timeout_s=ENOUGH_S)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (DigestMismatch("chunk 3"), DigestMismatch, "^chunk 3$"),
        (FileNotFoundError(2, "No such file or directory", "/x"), StorageError, "^No such file or directory: /x$"),
        (MemoryError("no room"), SlipwayError, "^MemoryError: no room$"),
    ],
)
def test_an_error_travels_as_one_of_ours(error: Exception, kind: type[SlipwayError], words: str) -> None:
    with pytest.raises(SlipwayError, match=words) as caught:
        call_limited("calling", fail, error, timeout_s=ENOUGH_S)
    assert type(caught.value) is kind


def test_an_error_that_should_never_be_is_a_defect_of_ours_with_its_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Defect, match="dividing: ZeroDivisionError: division by zero: this is a defect of Slipway, not of the storage"):
        call_limited("dividing", lambda: 1 / 0, timeout_s=ENOUGH_S)
    assert "Traceback (most recent call last)" in caplog.text
    assert "test_calls.py" in caplog.text


def test_a_hang_ends_at_the_limit() -> None:
    with pytest.raises(StorageError, match=r"reading the study: no answer within 0\.5 s; the storage behind it hangs"):
        call_limited("reading the study", lambda: signal.pause(), timeout_s=0.5)


@pytest.mark.parametrize(("inner", "renewed"), [(False, True), (False, False), (True, True)])
def test_bytes_that_move_renew_the_limits_of_silence_of_all_who_wait_for_them(inner: bool, renewed: bool) -> None:
    reader, writer = os.pipe()

    def copy() -> int:
        moved()
        os.read(reader, 1)
        return 7

    def ask() -> Any:
        return call_limited("inner", copy, timeout_s=60, renewed=True)

    call = LimitedCall("outer", ask if inner else copy, timeout_s=60, renewed=renewed)
    begun = call.deadline
    if renewed:
        select.select([call], [], [])
        assert not call.done()
    os.write(writer, b"x")
    assert call.wait() == 7
    assert (call.deadline > begun) == renewed
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("moves", [False, True])
def test_a_child_that_dies_without_an_answer(moves: bool) -> None:
    def stop() -> None:
        if moves:
            moved()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(StorageError, match="died without an answer"):
        call_limited("dying", stop, timeout_s=ENOUGH_S, renewed=moves)


def test_silence_ends_what_has_moved_bytes() -> None:
    def stop() -> None:
        moved()
        signal.pause()

    with pytest.raises(StorageError, match=r"copying: nothing moved for 0\.1 s"):
        call_limited("copying", stop, timeout_s=0.1, renewed=True)
    moved()  # in no child: nothing


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


# Calls in an interpreter of its own.


def test_a_caller_with_threads_gets_a_child_that_shares_none_of_its_locks() -> None:
    with in_children.LOCK:  # as another thread may hold it, such as that of a module which it is importing
        assert call_isolated("taking", in_children.take, "it", timeout_s=60) == ["it", 3]
        with pytest.raises(StorageError, match=r"taking: no answer within 0\.2 s"):
            call_limited("taking", in_children.take, "it", timeout_s=0.2)
    with pytest.raises(StorageError, match="No such file or directory: /nowhere/x"):
        call_isolated("looking", in_children.look, "/nowhere/x", timeout_s=60)
    large = "x" * 3_000_000
    assert call_isolated("taking", in_children.take, large, timeout_s=60) == [large, 3]


def test_one_that_hangs_is_killed(tmp_path: Path) -> None:
    pipe, number = tmp_path / "pipe", tmp_path / "number"
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match=r"reading: no answer within 2 s; the storage behind it hangs"):
        call_isolated("reading", in_children.read, str(pipe), str(number), timeout_s=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def test_what_a_function_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert call_isolated("printing", in_children.say, "words", timeout_s=60) == 5
    assert capfd.readouterr() == ("", "words")


def test_it_finds_what_the_caller_finds_by_a_relative_path(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "mine.py").write_text("def where():\n    import os\n    return os.getcwd()\n")
    code = "from base.calls import call_isolated; import mine; print(call_isolated('x', mine.where, timeout_s=60))"
    env = {**os.environ, "PYTHONPATH": f"packages{os.pathsep}{CODE_ROOT}"}
    argv = [sys.executable, "-c", code]
    assert subprocess.run(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout == "/\n"


def test_ctrl_c_is_for_the_caller_alone() -> None:
    """Who hears it and goes on, as slipway run does, gets an answer and no traceback of an interpreter that was about to begin."""
    code = """if True:
        import os, signal, threading
        from base.calls import call_isolated
        signal.signal(signal.SIGINT, lambda *_: None)
        threading.Timer(0.03, os.killpg, (0, signal.SIGINT)).start()
        print(call_isolated("x", os.getcwd, timeout_s=60))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=CODE_ROOT, capture_output=True, text=True, check=False, start_new_session=True)
    assert (done.stdout, done.stderr) == ("/\n", "")


def test_what_it_makes_has_the_umask_of_the_caller(tmp_path: Path) -> None:
    os.umask(0o027)
    call_isolated("making", os.mkdir, str(tmp_path / "x"), timeout_s=60)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o750
