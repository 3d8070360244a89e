"""Trees that somebody else has made are removed whole, and nothing outside of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from base.publish import remove_tree, why_left
from tests.nobody import as_nobody

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
    remove_tree(tmp_path / "file")
    assert not (tmp_path / "file").exists()


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
