"""publish(): old or new, nothing between, nothing left."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from base.publish import (
    create_exclusive,
    move_directory,
    publish,
    publish_directory,
    publish_file,
    publish_in,
    publish_new,
    remove_tree,
    reserve,
)
from tests.data_prep.staging.disks import exit_code, in_child


def test_publish_replaces_the_whole_content(tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    publish(target, b"old")
    publish(target, b"new content")
    assert target.read_bytes() == b"new content"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_publish_leaves_no_part_when_the_directory_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "missing" / "record.json", b"x")
    assert not list(tmp_path.iterdir())


def test_a_failed_rename_keeps_the_old_and_removes_the_part(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="taken"):
        publish(target, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_publish_file_moves(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"x")
    publish_file(part, tmp_path / "whole")
    assert not part.exists()
    assert (tmp_path / "whole").read_bytes() == b"x"


def test_a_directory_is_never_replaced(tmp_path: Path) -> None:
    for name, text in (("a", "first"), ("b", "second")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    assert publish_directory(tmp_path / "a", tmp_path / "target")
    assert not publish_directory(tmp_path / "b", tmp_path / "target")
    assert (tmp_path / "target" / "file").read_text() == "first"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["target"]


def test_move_directory_refuses_a_taken_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(FileExistsError):
        move_directory(tmp_path / "a", tmp_path / "b")
    move_directory(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c").is_dir()


@pytest.mark.parametrize("links", [True, False])
def test_publish_new_has_one_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    target = tmp_path / "line.json"
    assert publish_new(target, b"first")
    assert not publish_new(target, b"second")
    assert target.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(FileNotFoundError):
        publish_new(tmp_path / "nowhere" / "line.json", b"x")


def test_create_exclusive_has_one_winner(tmp_path: Path) -> None:
    target = tmp_path / "lease.json"
    assert create_exclusive(target, b"first")
    assert not create_exclusive(target, b"second")
    assert target.read_bytes() == b"first"


@pytest.mark.processes
def test_what_a_limit_of_size_cuts_off_leaves_nothing_and_names_the_file(tmp_path: Path) -> None:
    def too_large() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        for write in (create_exclusive, publish):
            with pytest.raises(OSError, match="File too large") as caught:
                write(tmp_path / "lease.json", bytes(100))
            assert caught.value.filename == str(tmp_path / "lease.json")

    assert exit_code(in_child(too_large)) == 0
    assert list(tmp_path.iterdir()) == []


def test_what_fits_into_its_room_is_published_with_it(tmp_path: Path) -> None:
    reserve(tmp_path / "room", 1 << 16)
    room = (tmp_path / "room").stat()
    assert room.st_blocks * 512 >= 1 << 16
    publish_in(tmp_path / "room", tmp_path / "note", b"a note")
    assert (tmp_path / "note").read_bytes() == b"a note"
    assert (tmp_path / "note").stat().st_ino == room.st_ino
    publish_in(tmp_path / "room", tmp_path / "note", b"without a room")
    assert (tmp_path / "note").read_bytes() == b"without a room"
    assert [entry.name for entry in tmp_path.iterdir()] == ["note"]


def test_remove_tree_removes_read_only_directories(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(b"x")
    inner.chmod(0o500)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_remove_tree_removes_a_link_and_not_what_is_behind_it(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "tree")
    remove_tree(tmp_path / "link")
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree"]


def test_publish_is_the_only_caller_of_rename() -> None:
    root = Path(__file__).parents[2]
    callers = []
    for room in ("base", "cluster", "containers", "data_prep", "extras", "workflow"):
        for path in (root / room).rglob("*.py"):
            text = path.read_text()
            if any(call in text for call in ("os.rename(", "os.replace(", "shutil.move(", "os.renames(")):
                callers.append(os.fspath(path.relative_to(root)))
    # a framework's program imports nothing of ours: it has the same protocol in small
    assert sorted(callers) == ["base/publish.py", "containers/lib/slipway_program/checkpoint.py"]
