"""LMDB itself reads and changes what is written without it."""

import random
from pathlib import Path

import lmdb
import pytest

from data_prep.build.lmdb_writer import LmdbWriter

LARGEST_IN_LEAF = 2022
"""Bytes of the largest value that LMDB keeps in a leaf page, beside a key of eight."""


def written(directory: Path, values: list[bytes]) -> Path:
    """Write the values in two parts each."""
    directory.mkdir()
    with LmdbWriter(directory / "data.mdb") as writer:
        for value in values:
            writer.add(value[: len(value) // 3], memoryview(value)[len(value) // 3 :])
        writer.finish()
        writer.sync()
        assert (writer.samples, writer.bytes) == (len(values), sum(map(len, values)))
    return directory


def random_values(sizes: list[int], count: int) -> list[bytes]:
    source = random.Random(count)
    return [source.randbytes(source.choice(sizes)) for _ in range(count)]


@pytest.mark.parametrize(
    ("sizes", "count", "depth"),
    [
        ([5], 0, 0),
        ([5], 1, 1),
        ([0, 1, 2, 3], 5000, 2),
        ([LARGEST_IN_LEAF], 3, 2),
        ([LARGEST_IN_LEAF + 1], 156, 1),
        ([LARGEST_IN_LEAF + 1], 157, 2),
        ([LARGEST_IN_LEAF - 1, LARGEST_IN_LEAF, LARGEST_IN_LEAF + 1], 400, 2),
        ([4079, 4080, 4081, 8176, 8177, 70_000], 200, 2),
        ([0, 100, 1000, 2000, 3000], 2000, 3),
        ([LARGEST_IN_LEAF], 2 * 200, 2),
        ([LARGEST_IN_LEAF], 2 * 200 + 1, 3),
    ],
)
def test_lmdb_finds_every_value(tmp_path: Path, sizes: list[int], count: int, depth: int) -> None:
    values = random_values(sizes, count)
    size = (written(tmp_path / "s", values) / "data.mdb").stat().st_size
    with lmdb.open(str(tmp_path / "s"), readonly=True, lock=False, lib_version=0, map_size=size) as env, env.begin() as txn:
        assert list(txn.cursor()) == [(b"%08d" % number, value) for number, value in enumerate(values)]
        assert all(txn.get(b"%08d" % number) == value for number, value in enumerate(values))
        assert [key for key, _ in txn.cursor().iterprev(values=True)] == [b"%08d" % number for number in reversed(range(count))]
        facts = env.stat()
        assert (facts["entries"], facts["depth"]) == (count, depth)
        assert facts["branch_pages"] + facts["leaf_pages"] + facts["overflow_pages"] + 2 == size // 4096 == env.info()["last_pgno"] + 1


def test_lmdb_changes_such_a_file(tmp_path: Path) -> None:
    values = random_values([10, 1500, 5000], 3000)
    with lmdb.open(str(written(tmp_path / "s", values)), map_size=1 << 30, lib_version=0) as env:
        with env.begin(write=True) as txn:
            assert all(txn.delete(b"%08d" % number) for number in range(0, 3000, 3))
            assert all(txn.put(b"x%05d" % number, b"new" * number) for number in range(2000))
        with env.begin() as txn:
            kept = [(b"%08d" % number, value) for number, value in enumerate(values) if number % 3]
            assert list(txn.cursor()) == kept + [(b"x%05d" % number, b"new" * number) for number in range(2000)]


def test_the_same_values_give_the_same_bytes(tmp_path: Path) -> None:
    values = random_values([100, 30_000], 300)
    one, other = (written(tmp_path / name, values) / "data.mdb" for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        LmdbWriter(tmp_path / "data.mdb")
    assert (tmp_path / "data.mdb").read_bytes() == b"mine"
