"""A directory that somebody else made, or can exchange, is not worked in, and the message says whose it is and what to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from base.untrusted import Distrusted, is_group_open, trusted_directory, why_distrusted

ROOT = os.geteuid() == 0
NOBODY = 65534
only_root = pytest.mark.skipif(not ROOT, reason="only root can make a directory of another's")


@pytest.fixture
def everybody(tmp_path: Path) -> Path:
    """Like /tmp."""
    place = tmp_path / "everybody"
    place.mkdir()
    place.chmod(0o1777)
    return place


def of_nobody(path: Path, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(mode)
    return path


def test_what_is_made_is_ours_alone(everybody: Path) -> None:
    path = everybody / "a" / "b"
    assert trusted_directory(path) == path.resolve()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert trusted_directory(path) == path.resolve()
    assert why_distrusted(path) is None


@pytest.mark.parametrize(("mode", "words"), [(0o755, None), (0o700, None), (0o1777, None), (0o775, "chmod go-w"), (0o757, "chmod go-w")])
def test_the_modes_of_a_directory_of_ours(tmp_path: Path, mode: int, words: str | None) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    path.chmod(mode)
    why = why_distrusted(path)
    assert (why is None) == (words is None), why
    assert words is None or (why is not None and words in why and f"{mode:04o}" in why and str(path) in why)


def test_a_directory_open_to_our_group_is_declared_by_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    path.chmod(0o2770)
    assert is_group_open(path.stat())
    assert why_distrusted(path) is None
    path.chmod(0o2777)
    assert why_distrusted(path) is not None


def test_nothing_is_made_where_everybody_can_exchange_it(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(Distrusted, match="no sticky bit"):
        trusted_directory(place / "cache")
    assert list(place.iterdir()) == []
    (place / "cache").mkdir(mode=0o700)
    with pytest.raises(Distrusted, match="everybody can exchange"):
        trusted_directory(place / "cache")


@only_root
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda place: of_nobody(place / "cache"), "of uid 65534, gid 65534, mode 0755) is somebody else's"),
        (lambda place: of_nobody(place / "cache", 0o777), "is somebody else's"),
        (lambda place: of_nobody(place / "cache", 0o2775), "is somebody else's"),
        (lambda place: (of_nobody(place / "way") / "cache").mkdir(), "is somebody else's, made where everybody can make names"),
        (lambda place: (place / "cache").symlink_to(place.parent / "home"), None),
        (lambda place: os.chown(link(place / "cache", place.parent / "home"), NOBODY, NOBODY, follow_symlinks=False), "somebody else's"),
        (lambda place: (place / "cache").symlink_to("cache"), "more than 40 links"),
        (lambda place: (place / "cache").write_text(""), "is not a directory"),
    ],
)
def test_what_a_stranger_has_planted_is_refused(everybody: Path, plant: Callable[[Path], object], words: str | None) -> None:
    (everybody.parent / "home").mkdir(mode=0o700)
    plant(everybody)
    path = next(everybody.glob("*/cache"), everybody / "cache")
    if words is None:
        assert trusted_directory(path) == everybody.parent / "home"
        return
    with pytest.raises(Distrusted) as error:
        trusted_directory(path)
    assert words in str(error.value.strerror)
    assert list((everybody.parent / "home").iterdir()) == []


@only_root
def test_what_lies_where_only_its_owner_makes_names_is_the_owner_s_business(tmp_path: Path) -> None:
    (of_nobody(tmp_path / "project") / "ours").mkdir(mode=0o700)
    assert why_distrusted(tmp_path / "project" / "ours") is None


@only_root
def test_a_colleague_s_directory_is_used_where_the_group_is_trusted(everybody: Path) -> None:
    path = everybody / "cache"
    path.mkdir()
    os.chown(path, NOBODY, os.getegid())
    path.chmod(0o2770)
    assert why_distrusted(path, group=True) is None
    why = why_distrusted(path)
    assert why is not None
    assert "somebody else's" in why
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o2770)
    assert why_distrusted(path, group=True) is not None, "a group that we are not in"


def link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path
