"""LMDBs as LSUN is published, and as tensorpack's LMDBSerializer writes them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from base.errors import DatasetError
from data_prep.datapoint import DatapointError, number_of_keys, parse_datapoint
from tests.data_prep.build.corpus import Pixels, build, encoded, pixels, prepared, read_back, reasons

FILE = b"\xff\xd8\xff\xe0picture"
CAPTURED = {
    "9285c4026e64c3c40474797065a37c7531c4046b696e64c400c4057368617065910bc40464617461c40bffd8ffe07069637475726503": (FILE, "3"),
    "9285c4026e64c3c40474797065a37c7531c4046b696e64c400c4057368617065910bc40464617461c40bffd8ffe07069637475726583c4026e64c2c40474797065a33c"
    "6938c40464617461c408f9ffffffffffffff": (FILE, "-7"),
    "9285c4026e64c3c40474797065a37c7531c4046b696e64c400c4057368617065920203c40464617461c406000102030405cf0000010000000000": (
        bytes(range(6)),
        "1099511627776",
    ),
}
"""What msgpack 1.1 with msgpack_numpy 0.4 made of [image, label], as tensorpack calls them; in hex."""


def packed(value: Any) -> bytes:
    """As msgpack_numpy packs it, of the kinds of values that datapoints have."""
    if isinstance(value, np.ndarray):
        shape = list(value.shape)
        return packed({b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": shape, b"data": value.tobytes()})
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return bytes([0xA0 + len(value)]) + value.encode()
    if isinstance(value, bytes):
        return (b"\xc4" + bytes([len(value)]) if len(value) < 256 else b"\xc6" + struct.pack(">I", len(value))) + value
    if isinstance(value, dict):
        return bytes([0x80 + len(value)]) + b"".join(packed(key) + packed(inner) for key, inner in value.items())
    head = bytes([0x90 + len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(">H", len(value))
    return head + b"".join(map(packed, value))


def lmdb_of(path: Path, values: dict[bytes, bytes], *, subdir: bool = True) -> Path:
    (path if subdir else path.parent).mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 24, lib_version=0) as env, env.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key, value)
    return path


def tensorpack(path: Path, values: list[bytes], listed: int | None = None, **options: Any) -> Path:
    keys = [b"%08d" % number for number in range(len(values))]
    names = [b"%08d" % number for number in range(len(values) if listed is None else listed)]
    return lmdb_of(path, {**dict(zip(keys, values, strict=True)), b"__keys__": packed(names)}, **options)


def array(content: bytes) -> Pixels:
    return np.frombuffer(content, np.uint8)


@pytest.mark.parametrize("text", CAPTURED)
def test_what_msgpack_wrote_is_read(text: str) -> None:
    found = parse_datapoint(memoryview(bytes.fromhex(text)))
    assert (bytes(found.image), found.label) == CAPTURED[text]


def test_the_packer_of_these_tests_writes_what_msgpack_does() -> None:
    assert packed([array(FILE), 3]).hex() in CAPTURED
    assert packed([np.arange(6, dtype=np.uint8).reshape(2, 3), 2**40]).hex() in CAPTURED


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "no list in msgpack"),
        (b"\x80\x04\x95.", "values of pyarrow or pickle are not read"),
        (bytes(64), "values of pyarrow or pickle are not read"),
        (packed([array(FILE)]), "not a list of image and label"),
        (packed([array(FILE), 1, 2]), "not a list of image and label"),
        (packed([array(FILE), 1]) + b"\0", "trailing characters"),
        (packed([array(FILE), 1])[:-2], "damaged msgpack: Input data was truncated"),
        (packed([array(FILE), True]), "its label is neither a whole number nor a word"),
        (packed([array(FILE), 1.5]), "its label is neither"),
        (packed([array(FILE), b"\xff"]), "its label is no UTF-8"),
        (packed([3, 1]), "its first component is no image"),
        (packed([np.zeros((2, 2, 3), np.uint8), 1]), "whether they are RGB or BGR"),
        (packed([np.zeros(4, np.float32), 1]), "something else than unsigned bytes"),
        (packed([{b"nd": True, b"type": "|u1", b"kind": b"", b"shape": [9], b"data": b"ab"}, 1]), "an array of shape"),
        (
            packed([{b"nd": True, b"type": "|u1", b"kind": b"", b"shape": [b"a", 1], b"data": b"ab"}, 1]),
            "shape is not of whole numbers above 0",
        ),
        (b"\x92\xc6\xff\xff\xff\xff", "damaged msgpack"),
        (b"\x92\xdd\xff\xff\xff\xff\x01", "damaged msgpack"),
        (b"\x91" * 2000, "damaged msgpack"),
        (b"\x92\xc7\x01\x01a\x01", "its first component is no image"),
        (b"\x92\x81\x90\x01\x01", "its first component is no image"),
    ],
)
def test_what_is_no_datapoint_is_refused(value: bytes, words: str) -> None:
    with pytest.raises(DatapointError, match=words):
        parse_datapoint(memoryview(value))


def test_damaged_datapoints_raise_nothing_else() -> None:
    whole = packed([array(FILE), 3])
    for place in range(len(whole)):
        for byte in (0, 0x7F, 0x81, 0x92, 0xC6, 0xDF, 0xFF):
            for value in (whole[:place] + bytes([byte]) + whole[place + 1 :], whole[:place]):
                try:
                    parse_datapoint(memoryview(value))
                    number_of_keys(memoryview(value))
                except DatapointError:
                    continue


@pytest.mark.processes
def test_tensorpack_with_encoded_and_grey_images(tmp_path: Path) -> None:
    grey = [pixels(seed, 4, 6, 1)[:, :, 0] for seed in range(4)]
    values = [packed([array(encoded(grey[0][:, :, None])), 3]), packed([encoded(grey[1][:, :, None]), 4])]
    values += [packed([grey[2], 3]), packed([grey[3][:, :, None], 4]), packed([array(b"text"), 3]), b"\x80\x04N."]
    path = tensorpack(tmp_path / "db", values)
    keys = {"source": "tensorpack", "path": str(path), "channels": "grey", "splits": {}, "shards": 1}
    root, manifest = build(tmp_path, keys)
    assert (manifest.classes, manifest.size, manifest.channels) == (("3", "4"), (4, 6), 1)
    assert sorted(image.tobytes() for image, _ in read_back(root)) == sorted(image.tobytes() for image in grey)
    assert reasons(manifest)["00000004"] == "not an image of a listed format"
    assert "pickle are not read" in reasons(manifest)["00000005"]
    again, _ = build(tmp_path / "again", {**keys, "path": str(tensorpack(tmp_path / "other" / "db", values, subdir=False))})
    assert again.name == root.name, "the same samples in another place, as a file without a directory"


@pytest.mark.processes
def test_values_that_tensorpack_lost_are_told(tmp_path: Path) -> None:
    values = [packed([array(encoded(pixels(seed, 4, 4))), seed % 2]) for seed in range(4)]
    path = tensorpack(tmp_path / "db", values, listed=300)
    _, manifest = build(tmp_path, {"source": "tensorpack", "path": str(path), "size": 4, "splits": {}, "shards": 1})
    assert reasons(manifest) == {"__keys__": "it lists 300 keys, and 4 are there: tensorpack lost the others"}


@pytest.mark.processes
def test_an_lmdb_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """A look-up finds either of them: an image would get the label of another."""
    path = tensorpack(tmp_path / "db", [packed([np.full((4, 4), label, np.uint8), label]) for label in range(4)])
    content = (path / "data.mdb").read_bytes()
    assert b"00000002" in content
    (path / "data.mdb").write_bytes(content.replace(b"00000002", b"00000001"))
    with pytest.raises(DatasetError, match="is damaged or no LMDB: .*key b'00000001' comes after b'00000001'"):
        build(tmp_path, {"source": "tensorpack", "path": str(path), "channels": "grey", "splits": {}, "shards": 1})


@pytest.mark.processes
def test_an_lmdb_of_pyarrow_is_refused_in_words(tmp_path: Path) -> None:
    path = tensorpack(tmp_path / "db", [bytes(64)])
    with pytest.raises(DatasetError, match="its first value, of key '00000000': no list in msgpack, which TENSORPACK_SERIALIZE=msgpack"):
        prepared(tmp_path, {"source": "tensorpack", "path": str(path)})


def lsun(root: Path, counts: dict[str, int], kind: str = "WEBP") -> Path:
    """As lsun's download.py leaves it: hashes as keys."""
    for number, (folder, count) in enumerate(counts.items()):
        images = [encoded(pixels(100 * number + seed, 8, 8), kind) for seed in range(count)]
        lmdb_of(root / folder, {b"%040x" % seed: image for seed, image in enumerate(images)})
    return root


@pytest.mark.processes
def test_lsun_has_its_categories_and_sets(tmp_path: Path) -> None:
    root = lsun(tmp_path / "lsun", {"bedroom_train_lmdb": 3, "bedroom_val_lmdb": 1, "dining_room_train_lmdb": 2, "dining_room_val_lmdb": 1})
    lsun(root, {"test_lmdb": 2})
    lmdb_of(root / "bedroom_train_lmdb", {b"zz": b"no image"})
    (root / "readme.txt").write_text("not an LMDB")
    built, manifest = build(tmp_path, {"source": "lsun", "path": str(root), "size": 8, "shards": 2})
    assert manifest.classes == ("bedroom", "dining_room")
    counts = {name: [label for _, label in read_back(built, name)] for name in ("train", "validation")}
    assert {name: sorted(labels) for name, labels in counts.items()} == {
        "train": ["bedroom"] * 3 + ["dining_room"] * 2,
        "validation": ["bedroom", "dining_room"],
    }
    assert reasons(manifest) == {
        "bedroom_train_lmdb/zz": "not an image of a listed format",
        "test_lmdb": "images without a category",
    }


@pytest.mark.processes
def test_a_category_of_lsun_without_a_training_set_is_told(tmp_path: Path) -> None:
    root = lsun(tmp_path / "lsun", {"bedroom_train_lmdb": 3, "bedroom_val_lmdb": 1, "tower_val_lmdb": 2})
    built, manifest = build(tmp_path, {"source": "lsun", "path": str(root), "size": 8, "shards": 2})
    assert manifest.classes == ("bedroom",)
    assert [len(read_back(built, name)) for name in ("train", "validation")] == [3, 1]
    assert reasons(manifest) == {"tower_val_lmdb": "tower has no training set (tower_train_lmdb)"}


@pytest.mark.processes
def test_training_sets_of_lsun_alone_are_split_by_fractions(tmp_path: Path) -> None:
    root = lsun(tmp_path / "lsun", {"cat": 4, "church_outdoor_train_lmdb": 4}, "JPEG")
    built, manifest = build(tmp_path, {"source": "lsun", "path": str(root), "size": 8, "splits": {"test": 0.25}, "shards": 2})
    assert manifest.classes == ("cat", "church_outdoor")
    assert len(read_back(built, "train")) + len(read_back(built, "test")) == 8
    one, manifest = build(tmp_path / "one", {"source": "lsun", "path": str(root / "cat"), "size": 8, "splits": {}, "shards": 1})
    assert manifest.classes == ("cat",)
    assert len(read_back(one)) == 4


@pytest.mark.processes
def test_lsun_as_it_is_downloaded_must_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "lsun").mkdir()
    (tmp_path / "lsun" / "bedroom_train_lmdb.zip").write_bytes(b"PK\3\4")
    with pytest.raises(DatasetError, match="lsun holds no LMDB: source: lsun wants the directory with bedroom_train_lmdb/data.mdb and the"):
        prepared(tmp_path, {"source": "lsun", "path": str(tmp_path / "lsun")})
