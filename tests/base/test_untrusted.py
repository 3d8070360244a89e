"""What a hostile program plants in its directory is named, never followed, waited for or written to."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import RecordError
from base.jsonfile import read_json
from base.untrusted import Unusable, directory, entries, make_directories, open_file, open_plain, open_regular, read_fed


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


def test_a_pipe_in_place_of_a_file_is_read_if_somebody_feeds_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "silent")
    with pytest.raises(Unusable, match=r"it is a pipe, and nobody has written into it for 0\.01 s"):
        read_fed(tmp_path / "silent", 10, timeout_s=0.01)
    reading, writing = os.pipe()
    try:
        os.write(writing, b"a: 1")
        with pytest.raises(Unusable, match="nobody"):  # its writer is there, and does not end
            read_fed(Path(f"/dev/fd/{reading}"), 10, timeout_s=0.01)
        os.write(writing, b"b: 22")
    finally:
        os.close(writing)
    assert read_fed(Path(f"/dev/fd/{reading}"), 4) == b"b: 2"
    assert read_fed(Path(f"/dev/fd/{reading}"), 10) == b"2"
    os.close(reading)
    (tmp_path / "plain").write_text("word")
    (tmp_path / "link").symlink_to("plain")
    assert read_fed(tmp_path / "link", 10) == b"word"
    with pytest.raises(Unusable, match="it is a device"):
        read_fed(Path("/dev/zero"), 10)
