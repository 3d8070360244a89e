"""What a hostile program plants in its directory is named, never followed, waited for or written to."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import RecordError
from base.jsonfile import read_json
from base.untrusted import (
    Distrusted,
    Unusable,
    directory,
    entries,
    is_group_open,
    make_directories,
    open_file,
    open_plain,
    open_regular,
    read_fed,
    trusted_directory,
    why_distrusted,
)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as planted, directory(path.parent) as parent:
        planted.bind(f"/proc/self/fd/{parent}/{path.name}")


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "a relative link": lambda path, outside: path.symlink_to(os.path.relpath(outside / "precious", path.parent)),
    "an absolute link": lambda path, outside: path.symlink_to(outside / "precious"),
    "a dangling link": lambda path, outside: path.symlink_to(outside / "new"),
    "a link to a directory": lambda path, outside: path.symlink_to(outside),
    "a link to itself": lambda path, _outside: path.symlink_to(path.name),
    "a pipe": lambda path, _outside: os.mkfifo(path),
    "a socket": lambda path, _outside: a_socket(path),
    "a directory": lambda path, _outside: path.mkdir(),
}
KIND = {name: name.partition(" to ")[0].split()[-1] for name in PLANTED}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "precious").write_text("thesis")
    return place


@pytest.fixture
def out(tmp_path: Path) -> Path:
    place = tmp_path / "out"
    place.mkdir()
    return place


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC])
@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_no_regular_file_is_not_opened(out: Path, outside: Path, planted: str, flags: int) -> None:
    PLANTED[planted](out / "name", outside)
    with directory(out) as root, pytest.raises(Unusable) as error:
        open_regular(root, "name", flags)
    assert KIND[planted] in str(error.value.strerror)
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "thesis"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_not_used(out: Path) -> None:
    os.mknod(out / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with directory(out) as root, pytest.raises(Unusable, match="a device"):
        open_regular(root, "zero")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_component_is_a_link(out: Path, outside: Path, depth: int) -> None:
    parents = [f"d{number}" for number in range(depth)]
    out.joinpath(*parents[:-1]).mkdir(parents=True, exist_ok=True)
    out.joinpath(*parents).symlink_to(outside)
    with directory(out) as root:
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
            with pytest.raises(Unusable, match="a symbolic link"):
                open_regular(root, "/".join([*parents, "precious"]), flags)
        with pytest.raises(Unusable, match="a symbolic link"):
            make_directories(root, "/".join([*parents, "new"]))
    with pytest.raises(Unusable, match="a symbolic link"):
        open_file(out.joinpath(*parents, "precious"))
    assert [path.name for path in outside.iterdir()] == ["precious"]


@pytest.mark.parametrize("path", ["", ".", "..", "../outside/precious", "a/../../outside/precious", "/etc/passwd", "a//b", "a/", "a\0b"])
def test_a_path_does_not_leave_its_directory(out: Path, outside: Path, path: str) -> None:
    (out / "a").mkdir()
    with directory(out) as root, pytest.raises(Unusable, match="not a plain path"):
        open_regular(root, path)
    assert outside.is_dir()


def test_a_directory_that_becomes_a_link_between_the_list_and_the_opening(out: Path, outside: Path) -> None:
    (out / "deep").mkdir()
    (out / "deep" / "precious").write_text("ours")
    with directory(out) as root:
        found = [entry.path for entry in entries(root, 10)]
        (out / "deep").rename(out / "moved")
        (out / "deep").symlink_to(outside)
        assert found == ["deep", "deep/precious"]
        with pytest.raises(Unusable, match="a symbolic link"):
            open_regular(root, "deep/precious")
        assert sorted(entry.path for entry in entries(root, 10)) == ["deep", "moved", "moved/precious"]


def test_a_root_that_is_exchanged_while_it_is_open_stays_the_one_that_was_opened(out: Path, outside: Path) -> None:
    (out / "precious").write_text("ours")
    with directory(out) as root:
        out.rename(out.with_name("moved"))
        out.symlink_to(outside)
        with os.fdopen(open_regular(root, "precious")) as file:
            assert file.read() == "ours"
    with pytest.raises(Unusable, match="a symbolic link"), directory(out):
        pass


def test_a_list_is_as_long_as_was_asked_and_as_deep_as_is_looked(out: Path) -> None:
    for number in range(50):
        (out / str(number)).touch()
    out.joinpath(*["d"] * 60).mkdir(parents=True)
    with directory(out) as root:
        assert len(list(entries(root, 7))) == 7
        assert max(entry.path.count("/") for entry in entries(root, 1000)) == 32


@pytest.mark.parametrize("planted", ["a pipe", "a socket", "a directory", "a link to a directory"])
def test_a_json_file_is_a_file(out: Path, outside: Path, planted: str) -> None:
    PLANTED[planted](out / "record.json", outside)
    with pytest.raises(RecordError, match=r"record\.json cannot be read: "):
        read_json(out / "record.json")


def test_a_path_that_the_user_names_may_hold_links(out: Path, outside: Path) -> None:
    (out / "way").symlink_to(outside)
    (out / "file").symlink_to("way/precious")
    for path in (out / "way" / "precious", out / "file"):
        with os.fdopen(open_plain(path)) as file:
            assert file.read() == "thesis"


def test_a_plain_file_is_read_and_written_anew(out: Path) -> None:
    with directory(out) as root:
        make_directories(root, "a/b")
        make_directories(root, "a/b")
        for text in ("longer", "new"):
            with os.fdopen(open_regular(root, "a/b/file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                file.write(text)
        assert os.read(open_regular(root, "a/b/file"), 100) == b"new"
        with pytest.raises(FileNotFoundError):
            open_regular(root, "a/nothing")


def test_a_pipe_in_place_of_a_file_is_read(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a: 1b: 22")
    os.close(writing)
    assert read_fed(Path(f"/dev/fd/{reading}"), 100) == b"a: 1b: 22"
    os.close(reading)
    (tmp_path / "plain").write_text("word")
    (tmp_path / "link").symlink_to("plain")
    assert read_fed(tmp_path / "link", 2) == b"wo"
    with pytest.raises(Unusable, match="it is a device"):
        read_fed(Path("/dev/zero"), 10)


# A directory that somebody else made, or can exchange, is not worked in, and the message says whose it is and what to do.


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
