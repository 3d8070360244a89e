"""Calls in an interpreter of its own, which is kept: its answers, its errors, who is asked after one that hung or died, and its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from base.calls import call_apart, call_limited, end_kept
from base.errors import StorageError
from tests.base import in_children

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def none_is_kept() -> Iterator[None]:
    end_kept()
    yield
    end_kept()


def asked() -> Any:
    """Its process."""
    return call_apart("asking", in_children.process, timeout_s=60)


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Callable[[], bool]]:
    """Whether the process ends within a minute."""
    descriptor = os.pidfd_open(pid)
    yield lambda: bool(select.select([descriptor], [], [], 60)[0])
    os.close(descriptor)


def test_a_caller_with_threads_gets_a_child_that_shares_none_of_its_locks() -> None:
    with in_children.LOCK:  # as another thread may hold it, such as that of a module which it is importing
        assert call_apart("taking", in_children.take, "it", timeout_s=60) == ["it", 3]
        with pytest.raises(StorageError, match=r"taking: no answer within 0\.2 s"):
            call_limited("taking", in_children.take, "it", timeout_s=0.2)
    with pytest.raises(StorageError, match="No such file or directory: /nowhere/x"):
        call_apart("looking", in_children.look, "/nowhere/x", timeout_s=60)


def test_one_interpreter_answers_one_call_after_the_other_also_after_an_error() -> None:
    first = asked()
    with pytest.raises(StorageError, match="No such file"):
        call_apart("looking", in_children.look, "/nowhere/x", timeout_s=60)
    assert asked() == first != os.getpid()
    large = "x" * 3_000_000
    assert call_apart("taking", in_children.take, large, timeout_s=60) == [large, 3]
    assert asked() == first


def test_one_that_hangs_is_killed_and_its_answer_is_never_that_of_another_call(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first = asked()
    with watched(first) as ended:
        with pytest.raises(StorageError, match=r"reading: no answer within 0\.1 s; the storage behind it hangs"):
            call_apart("reading", in_children.read, str(pipe), timeout_s=0.1)
        assert ended()
    assert asked() != first


def test_one_that_dies_in_a_call_or_before_it_is_replaced() -> None:
    first = asked()
    with pytest.raises(StorageError, match="dying: the child process died without an answer"):
        call_apart("dying", in_children.die, timeout_s=60)
    second = asked()
    os.kill(second, signal.SIGKILL)
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
    assert asked() not in (first, second)


def test_while_it_waits_a_signal_to_the_whole_group_does_not_end_it() -> None:
    first = asked()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(first, number)
    assert asked() == first


def test_calls_of_two_threads_each_get_their_own_answer() -> None:
    with ThreadPoolExecutor(2) as pool:
        texts = [str(number) for number in range(20)]
        answers = pool.map(lambda text: call_apart("taking", in_children.take, text, timeout_s=60), texts)
        assert list(answers) == [[text, 3] for text in texts]


def test_a_child_that_was_forked_asks_an_interpreter_of_its_own() -> None:
    first = asked()
    assert call_limited("asking", asked, timeout_s=60) not in (first, os.getpid())
    assert asked() == first


def test_it_ends_with_who_started_it() -> None:
    """Here one that was forked, and is killed: its interpreter reads the end of its socket."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(asked()).encode())
            signal.pause()
        finally:
            os._exit(1)
    started = int(os.read(reader, 100))
    with watched(started) as ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert ended(), "it runs on"
    os.close(reader)
    os.close(writer)


def test_what_it_makes_has_the_umask_of_the_call_not_of_its_start(tmp_path: Path) -> None:
    first = asked()
    for umask, mode in ((0o077, 0o700), (0o027, 0o750), (0o022, 0o755)):
        os.umask(umask)
        call_apart("making", os.mkdir, str(tmp_path / f"{mode:o}"), timeout_s=60)
        assert (tmp_path / f"{mode:o}").stat().st_mode & 0o777 == mode
    assert asked() == first
