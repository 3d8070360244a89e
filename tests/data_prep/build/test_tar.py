"""Tar archives: class folders, tars in a tar, compressed ones; and hostile ones, whose members never become paths."""

import bz2
import contextlib
import gzip
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from base.errors import DatasetError
from data_prep.sources import spool, tar
from data_prep.sources.tar import Member, TarError, members
from data_prep.sources.types import ListedSample, Refused, Root
from tests.data_prep.build.corpus import build, encoded, pixels, read_back, reasons, tar_of, write

IMAGE = encoded(pixels(1))


def scan(path: Path) -> list[ListedSample | Refused]:
    root = Root(path=path, scratch=path.parent / "scratch")
    return list(tar.scan(root, tar.prepare(root)))


def labels(path: Path) -> dict[str, str]:
    return {entry.name: entry.label if isinstance(entry, ListedSample) else f"!{entry.reason}" for entry in scan(path)}


def special(name: str, kind: bytes, target: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


def test_classes_are_the_folders_below_what_is_common(tmp_path: Path) -> None:
    for prefix in ("", "./", "photos/", "./a/b/"):
        path = write(tmp_path / "t.tar", tar_of({f"{prefix}cat/1.png": IMAGE, f"{prefix}dog/deep/2.png": IMAGE}))
        assert set(labels(path).values()) == {"cat", "dog"}
    assert labels(write(tmp_path / "t.tar", tar_of({"photos/cat/1.png": IMAGE}))) == {"photos/cat/1.png": "cat"}


def test_top_level_splits_are_the_sources_own(tmp_path: Path) -> None:
    files = {
        f"x/{split}/{name}/1.png": encoded(pixels(hash_))
        for hash_, (split, name) in enumerate([("train", "a"), ("train", "b"), ("val", "a")])
    }
    found = scan(write(tmp_path / "t.tar", tar_of(files)))
    assert [(entry.split, entry.label) for entry in found if isinstance(entry, ListedSample)] == [
        ("train", "a"),
        ("train", "b"),
        ("validation", "a"),
    ]


def test_a_tar_of_tars_as_imagenet(tmp_path: Path) -> None:
    inner = {f"n0{c}.tar": tar_of({f"n0{c}_{i}.JPEG": encoded(pixels(10 * c + i), "PNG") for i in range(3)}) for c in (1, 2)}
    deep = {"n03.tar": tar_of({"again.tar": inner["n01.tar"]}), "n04.tar": b"no tar at all", "n05.tar.gz": gzip.compress(b"x")}
    path = write(tmp_path / "t.tar", tar_of({**inner, **deep}))
    found = labels(path)
    assert found["n01.tar/n01_0.JPEG"] == "n01"
    assert found["n03.tar/again.tar"] == "!archives nested deeper than two"
    assert "no plain tar" in found["n04.tar"]
    root, manifest = build(tmp_path, {"source": "tar", "path": str(path), "splits": {}, "shards": 2})
    assert manifest.classes == ("n01", "n02")
    expected = {pixels(10 * c + i).tobytes(): f"n0{c}" for c in (1, 2) for i in range(3)}
    assert {image.tobytes(): label for image, label in read_back(root)} == expected


def padded(content: bytes, pack: Callable[[bytes], bytes] = lzma.compress) -> bytes:
    return pack(content[:3000]) + bytes(8) + pack(content[3000:]) + bytes(512)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, padded, partial(padded, pack=bz2.compress)])
def test_a_compressed_tar_gives_the_same_dataset(tmp_path: Path, pack: object) -> None:
    content = tar_of({f"{name}/{i}.png": encoded(pixels(100 * k + i)) for k, name in enumerate("ab") for i in range(4)})
    plain = write(tmp_path / "plain.tar", content)
    packed = write(tmp_path / "packed.tgz", pack(content))  # type: ignore[operator]
    spec = {"source": "tar", "splits": {}, "shards": 1}
    one, _ = build(tmp_path / "1", {**spec, "path": str(plain)})
    other, _ = build(tmp_path / "2", {**spec, "path": str(packed)})
    assert one.name == other.name
    assert not list((tmp_path / "2" / "datasets" / ".build" / "set-0").glob("spool/*"))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_and_strange_names_in_every_format(tmp_path: Path, form: int) -> None:
    names = ["cat/" + "x" * 90 + ".png", "dog/" + "a/" * 30 + "y.png", "dog/two words.png"]
    if form != tarfile.USTAR_FORMAT:
        names += ["cat/" + "n" * 200 + ".png", "cat/ünï.png"]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(IMAGE)
            archive.addfile(member, io.BytesIO(IMAGE))
    assert sorted(labels(write(tmp_path / "t.tar", out.getvalue()))) == sorted(names)


HOSTILE: dict[str, tuple[tarfile.TarInfo | bytes, str]] = {
    "../../escape.png": (IMAGE, "leaves the archive"),
    "cat/../../escape.png": (IMAGE, "leaves the archive"),
    "/etc/absolute.png": (IMAGE, "absolute"),
    "cat/link.png": (special("cat/link.png", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
    "cat/hard.png": (special("cat/hard.png", tarfile.LNKTYPE, "/etc/passwd"), "a hard link"),
    "cat/dev.png": (special("cat/dev.png", tarfile.CHRTYPE), "a device"),
    "cat/block.png": (special("cat/block.png", tarfile.BLKTYPE), "a device"),
    "cat/pipe.png": (special("cat/pipe.png", tarfile.FIFOTYPE), "a fifo"),
    "cat/strange.png": (special("cat/strange.png", b"Z"), "unknown kind"),
    "cat/empty.png": (b"", "zero bytes"),
    "cat/.hidden.png": (IMAGE, "hidden"),
    "__MACOSX/._x": (b"x", "hidden"),
    "cat/readme.txt": (b"hello", "not an image"),
    "loose.png": (IMAGE, "outside the class folders"),
    "cat/a\nb.png": (IMAGE, ""),
}


def test_hostile_members_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    good = {f"{name}/{i}.png": encoded(pixels(10 * k + i)) for k, name in enumerate(("cat", "dog")) for i in range(3)}
    path = write(tmp_path / "src" / "t.tar", tar_of({**good, **{name: member for name, (member, _) in HOSTILE.items()}}))
    before = {str(file) for file in tmp_path.parent.rglob("*")}
    root, manifest = build(tmp_path / "out", {"source": "tar", "path": str(path), "splits": {}, "shards": 1})
    found = reasons(manifest)
    for name, (_, words) in HOSTILE.items():
        assert words in found.get(name, ""), name
    assert len(read_back(root)) == len(good) + 1
    assert {
        file for file in {str(file) for file in tmp_path.parent.rglob("*")} - before if not file.startswith(str(tmp_path / "out"))
    } == set()
    assert not Path("/etc/absolute.png").exists()


def test_a_name_that_comes_twice_is_taken_once(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for content in (encoded(pixels(1)), encoded(pixels(2)), encoded(pixels(3))):
            member = tarfile.TarInfo("cat/1.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    root, manifest = build(tmp_path, {"source": "tar", "path": str(write(tmp_path / "t.tar", out.getvalue())), "splits": {}, "shards": 1})
    assert [image.tobytes() for image, _ in read_back(root)] == [pixels(1).tobytes()]
    assert manifest.rejected_count == 2
    assert "second entry" in manifest.rejected[0]["reason"]


def test_a_cut_archive_gives_what_is_whole(tmp_path: Path) -> None:
    content = tar_of({f"{'ab'[i % 2]}/{i}.png": encoded(pixels(i)) for i in range(6)})
    path = write(tmp_path / "t.tar", content[: 512 * 7])
    found = labels(path)
    assert sum(not label.startswith("!") for label in found.values()) == 3
    assert any("damaged from here on" in label for label in found.values())


def test_a_size_that_is_not_there_is_damage(tmp_path: Path) -> None:
    content = tar_of({"cat/1.png": IMAGE, "cat/huge.png": special("cat/huge.png", tarfile.REGTYPE, size=8 << 40)})
    found = labels(write(tmp_path / "t.tar", content))
    assert found["cat/1.png"] == "cat"
    assert "archive is cut" in found["(the rest)"]


def test_what_is_no_tar_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", bytes(10240), IMAGE):
        with pytest.raises(DatasetError, match="no tar archive"):
            scan(write(tmp_path / "t.tar", content))
    with pytest.raises(DatasetError, match="does not exist"):
        scan(tmp_path / "none.tar")
    with pytest.raises(DatasetError, match="zip"):
        scan(write(tmp_path / "t.tar", b"PK\x03\x04rest"))


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    bomb = write(tmp_path / "bomb.tar.gz", gzip.compress(bytes(spool.FREE_OF_RATIO + (8 << 20)), 9))
    with pytest.raises(DatasetError, match="unpacks to more than"):
        scan(bomb)
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_cut_or_flipped_packing_is_named(tmp_path: Path, pack: object) -> None:
    content = tar_of({f"a/{i}.png": encoded(pixels(i, 32, 32)) for i in range(8)})
    whole = pack(content)  # type: ignore[operator]
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    later = pack(content[:3000]) + b"?" + pack(content[3000:])[1:]  # type: ignore[operator]
    for damaged in (whole[: len(whole) // 2], bytes(flipped), later):
        with pytest.raises(DatasetError, match="is damaged"):
            scan(write(tmp_path / "t.tgz", damaged))


def walk(content: bytes) -> list[Member]:
    return list(members(lambda at, size: content[at : at + size], 0, len(content)))


def test_members_agree_with_tarfile() -> None:
    rng = random.Random(5)
    files = {f"{rng.choice('abc')}/{i}" + "x" * rng.randrange(200): rng.randbytes(rng.randrange(2000)) for i in range(50)}
    content = tar_of(files)
    assert {m.name.decode(): content[m.offset : m.offset + m.size] for m in walk(content)} == files


def test_times_of_an_incremental_archive_are_no_part_of_a_name() -> None:
    """`tar --format=gnu --incremental` writes access time and change time where POSIX has the beginning of a name."""
    header = bytearray(tarfile.TarInfo("cats/1.jpg").tobuf(tarfile.GNU_FORMAT))
    header[345:369] = b"15302230026\x0015302230027\0"
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * ord(" "))
    assert [member.name for member in walk(bytes(header) + bytes(1024))] == [b"cats/1.jpg"]


def test_random_damage_ends_in_members_or_tar_error() -> None:
    rng = random.Random(11)
    whole = tar_of({"a/" + "n" * 150: b"x" * 700, "b": b"y", "l": special("l", tarfile.SYMTYPE, "t"), "s": special("s", b"S")})
    pax = io.BytesIO()
    with tarfile.open(fileobj=pax, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("ü" * 120))
    read = 0
    for trial in range(600):
        content = bytearray((whole, pax.getvalue())[trial % 2])
        header = 512 * rng.randrange(len(content) // 512)
        for _ in range(rng.randint(1, 3)):
            content[header + rng.randrange(512)] = rng.randrange(256)
        block = content[header : header + 512]  # a right checksum, so that damage gets past it
        content[header + 148 : header + 156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32)
        with contextlib.suppress(TarError):
            assert all(m.offset + m.size <= len(content) for m in walk(bytes(content)))
            read += 1
    assert 0 < read < 600, "some of it is read, and some refused"


def test_an_archive_that_is_cut_anywhere_says_so(tmp_path: Path) -> None:
    """In a header too, and just before one: nothing is missing without a word."""
    whole = tar_of({f"cat/{i}.png": IMAGE for i in range(3)})
    end = max(
        entry.at[0] + -(-len(IMAGE) // 512) * 512 for entry in scan(write(tmp_path / "t.tar", whole)) if isinstance(entry, ListedSample)
    )
    for cut in (512, 512 + len(IMAGE) - 1, end - 1, end, end + 1, end + 511, *range(513, end, 97)):
        assert "(the rest)" in labels(write(tmp_path / "t.tar", whole[:cut])), cut
    for cut in (0, 1, 512 - 1):
        with pytest.raises(DatasetError, match="is no tar archive"):
            scan(write(tmp_path / "t.tar", whole[:cut]))
    assert "(the rest)" not in labels(write(tmp_path / "t.tar", whole[: end + 512]))
