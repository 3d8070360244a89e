"""Lock files: who has one, whether it still has its name, and what others read in it."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from base.lock import LockFile, has_name, try_lock
from base.untrusted import Distrusted

HOLDER = """
import sys
from pathlib import Path
from base.lock import LockFile
lock = LockFile(Path(sys.argv[1]))
assert lock.take(60)
lock.write_holder("another")
print("has it", flush=True)
sys.stdin.read()
"""


def other(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    found = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert found.stdout is not None
    assert found.stdout.readline() == "has it\n"
    return found


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


@pytest.mark.processes
def test_one_has_it_and_the_others_read_who(tmp_path: Path) -> None:
    holder = other(tmp_path / "x.lock")
    with LockFile(tmp_path / "x.lock") as lock:
        assert not lock.try_take()
        assert not lock.take(0.0)
        assert (lock.held, lock.read_holder()) == (False, "another")
        end(holder)
        assert lock.take()
        lock.write_holder("me")
        assert (lock.held, lock.read_holder(), lock.path.read_text()) == (True, "me", "me")
        lock.unlock()
        with LockFile(tmp_path / "x.lock") as next_one:
            assert next_one.try_take()
            assert next_one.read_holder() == "me"


def test_a_file_that_was_cleaned_away_is_made_anew(tmp_path: Path) -> None:
    with LockFile(tmp_path / "x.lock") as lock:
        number = lock.descriptor
        lock.path.unlink()
        assert not has_name(lock.descriptor, lock.path)
        with LockFile(tmp_path / "x.lock") as fresh:
            assert fresh.try_take()
            assert not lock.try_take(), "the file that has the name is another's"
        assert lock.try_take()
        assert lock.descriptor == number, "whoever keeps a list of what no child may inherit has it still"
        assert not os.get_inheritable(number)
        assert has_name(lock.descriptor, lock.path)


def test_who_waits_for_a_file_that_is_removed_gets_the_next(tmp_path: Path) -> None:
    first, second = LockFile(tmp_path / "x.lock"), LockFile(tmp_path / "x.lock")
    assert first.try_take()
    waiting = threading.Thread(target=second.take)
    waiting.start()
    first.remove()
    waiting.join(60)
    assert second.held
    assert has_name(second.descriptor, tmp_path / "x.lock")
    second.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_lock_of_a_group_is_the_group_s_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        LockFile(tmp_path / "x.lock", mode).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.lock").stat().st_mode) == mode


def test_a_trusted_directory_is_made_again_and_one_of_a_stranger_is_refused(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    with LockFile(ours / "x.lock", trusted=True) as lock:
        lock.path.unlink()
        ours.rmdir()
        assert lock.try_take()
        assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Distrusted, match="can be written by others"):
        LockFile(tmp_path / "open" / "x.lock", trusted=True)


@pytest.mark.parametrize("planted", ["a link", "a directory"])
def test_what_is_no_file_is_refused(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "x.lock"
    if planted == "a link":
        path.symlink_to(tmp_path / "precious")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"symbolic links|Is a directory"):
        LockFile(path)
    assert not (tmp_path / "precious").exists()


def test_a_shorter_text_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    with LockFile(tmp_path / "x.lock") as lock:
        for text in ("a long text", "short", "", "ä"):
            lock.write_holder(text)
            assert lock.read_holder() == text
            assert lock.path.read_text() == text
        lock.path.write_bytes(b"\xff\x00")
        assert lock.read_holder().endswith("\0")


def test_a_directory_is_locked_by_its_descriptor(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    assert try_lock(first)
    assert try_lock(first)
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)
