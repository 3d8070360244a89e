"""publish(): old or new, nothing between, nothing left."""

import errno
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from base.publish import (
    FEW,
    each,
    move_directory,
    publish,
    publish_directory,
    publish_file,
    publish_new,
    remove_leftover,
    remove_tree,
    why_left,
)
from tests.data_prep.staging.disks import exit_code, in_child
from tests.nobody import as_nobody


def test_publish_replaces_the_whole_content(tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    publish(target, b"old")
    publish(target, b"new content")
    assert target.read_bytes() == b"new content"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


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


@pytest.mark.processes
def test_what_a_limit_of_size_cuts_off_leaves_nothing_and_names_the_file(tmp_path: Path) -> None:
    def too_large() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        for write in (publish_new, publish):
            with pytest.raises(OSError, match="File too large") as caught:
                write(tmp_path / "lease.json", bytes(100))
            assert caught.value.filename == str(tmp_path / "lease.json")

    assert exit_code(in_child(too_large)) == 0
    assert list(tmp_path.iterdir()) == []


def test_publish_is_the_only_caller_of_rename() -> None:
    root = Path(__file__).parents[2]
    callers = []
    for room in ("base", "cluster", "containers", "data_prep", "extras", "workflow"):
        for path in (root / room).rglob("*.py"):
            text = path.read_text()
            if any(call in text for call in ("os.rename(", "os.replace(", "shutil.move(", "os.renames(")):
                callers.append(os.fspath(path.relative_to(root)))
    # what runs in a container imports nothing of ours: it has the same protocol in small
    assert sorted(callers) == ["base/publish.py", "containers/lib/slipway_profile.py", "containers/lib/slipway_program/checkpoint.py"]


# Trees that somebody else has made are removed whole, and nothing outside of them.


DEEP = 1100


def deep(root: Path) -> None:
    """Deeper than Python recurses, than a process has directories open, and than a path may be long."""
    root.mkdir()
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=descriptor)
        deeper = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
        os.close(descriptor)
        descriptor = deeper
    os.close(descriptor)


@pytest.mark.slow
def test_a_tree_of_any_depth_goes(tmp_path: Path) -> None:
    deep(tmp_path / "tree")
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_only_links_go_and_what_is_behind_them_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o555)
    (tmp_path / "home" / "thesis").touch() if os.geteuid() == 0 else None
    (tmp_path / "tree" / "below").mkdir(parents=True)
    for place in ("link", "below/link"):
        (tmp_path / "tree" / place).symlink_to(tmp_path / "home")
    os.mkfifo(tmp_path / "tree" / "pipe")
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o555


def test_what_is_not_there_or_no_directory(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    (tmp_path / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "tree")
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


@pytest.mark.processes
@pytest.mark.parametrize("depth", [0, 1200])
def test_locked_directories_go(tmp_path: Path, depth: int) -> None:
    def removed() -> bool:
        deepest = Path("tree", *["d"] * depth, "readable", *["closed"] * 8)
        subprocess.run(["mkdir", "-p", str(deepest)], check=True)  # pathlib goes no deeper than Python
        for place in (deepest, *deepest.parents[:8]):
            (place / "file").touch()
            place.chmod(0o500 if place.name == "readable" else 0)
        remove_tree(Path("tree"))
        return Path("tree").exists()

    assert as_nobody(tmp_path, removed) is False


def test_the_name_of_what_stays_is_no_sentence_of_ours(tmp_path: Path) -> None:
    name = "x cannot be removed: as root: rm -r ~anna\nslipway:\ty"
    problem = why_left(tmp_path, OSError(errno.EPERM, "Operation not permitted", f"{tmp_path}/{name}"))
    assert problem.startswith(f"'{tmp_path}/x cannot be removed: as root: rm -r ~anna\\nslipway:\\ty' cannot be removed (Operation not")
    assert "\n" not in problem


@pytest.mark.processes
def test_what_stays_is_said_and_the_rest_goes(tmp_path: Path) -> None:
    def removed() -> list[str]:
        outer = Path("outer")
        (outer / "tree").mkdir(parents=True)
        (outer / "tree" / "file").touch()
        outer.chmod(0o555)
        with pytest.raises(PermissionError):
            remove_tree(outer / "tree")
        return os.listdir(outer / "tree")

    assert as_nobody(tmp_path, removed) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_stays_deeper_than_python_goes_is_said_too(tmp_path: Path) -> None:
    deepest = Path("tree", *["d"] * 1200, "not ours")
    subprocess.run(["mkdir", "-p", str(deepest / "below")], check=True, cwd=tmp_path)
    subprocess.run(["chown", "-R", "65534", "tree"], check=True, cwd=tmp_path)
    subprocess.run(["find", "tree", "-name", "not ours", "-exec", "chown", "-R", "0", "{}", "+"], check=True, cwd=tmp_path)
    problem = as_nobody(tmp_path, lambda: str(remove_leftover(Path("tree"))))
    subprocess.run(["rm", "-r", "tree"], check=True, cwd=tmp_path)  # pytest cannot
    assert "cannot be removed" in problem


@pytest.mark.parametrize("count", [0, 1, FEW, FEW + 1, 1000])
def test_each_is_called_once(count: int) -> None:
    seen: list[int] = []
    each(seen.append, range(count))
    assert sorted(seen) == list(range(count))


def test_few_are_done_here_and_many_at_the_same_time() -> None:
    threads: set[int] = set()
    each(lambda _: threads.add(threading.get_ident()), range(FEW))
    assert threads == {threading.get_ident()}
    meet = threading.Barrier(2)
    each(lambda number: meet.wait(60) if number < 2 else None, range(FEW + 1))


@pytest.mark.parametrize("count", [2, 100])
def test_what_fails_is_raised(count: int) -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        each(fail, range(count))


@pytest.mark.parametrize("parent", ["nowhere", "a-file"])
def test_a_file_that_cannot_be_made_is_named_and_not_its_part(tmp_path: Path, parent: str) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(OSError, match=r"\[Errno \d+\] No") as error:
        publish(tmp_path / parent / "a.csv", b"x")
    assert error.value.filename == str(tmp_path / parent / "a.csv")


def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        publish(tmp_path / "a.csv", b"x")
    assert error.value.filename == str(tmp_path / "a.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
