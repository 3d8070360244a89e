"""LMDBs as LSUN is published."""

from pathlib import Path

import lmdb
import pytest

from base.errors import DatasetError
from tests.data_prep.build.corpus import build, encoded, pixels, prepared, read_back, reasons


def lmdb_of(path: Path, values: dict[bytes, bytes]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=1 << 24, lib_version=0) as env, env.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key, value)
    return path


@pytest.mark.processes
def test_an_lmdb_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """A look-up finds either of them: an image would get the label of another."""
    path = lmdb_of(tmp_path / "db" / "cat_train_lmdb", {b"%08d" % seed: encoded(pixels(seed, 4, 4)) for seed in range(4)})
    content = (path / "data.mdb").read_bytes()
    assert b"00000002" in content
    (path / "data.mdb").write_bytes(content.replace(b"00000002", b"00000001"))
    with pytest.raises(DatasetError, match="is damaged or no LMDB: .*key b'00000001' comes after b'00000001'"):
        build(tmp_path, {"source": "lsun", "path": str(path.parent), "splits": {}, "shards": 1})


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
