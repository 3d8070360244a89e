"""How fast samples are read: the pages of each sample, what is cold and what cannot be, and files that are not what they should be."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from base.errors import DatasetError
from data_prep import read_rates
from data_prep.manifest import read_manifest
from data_prep.mounts import Mount, nearest_mount
from data_prep.read_rates import PAGE, Options, Piece, measure_reads
from data_prep.reader import shards
from data_prep.sequences.manifest import SequenceShard
from tests.data_prep.reader.small import encode, image_dataset, write_shard
from tests.data_prep.reader.test_dataset import jpeg

TMPFS = Mount(point="/m", root="/", type="tmpfs", source="tmpfs", device="0:1", options=())


def images(side: int, count: int) -> list[tuple[np.ndarray, int]]:
    random = np.random.default_rng(7)
    return [(random.integers(0, 256, (side, side, 3), dtype=np.uint8), 0) for _ in range(count)]


@pytest.mark.parametrize("side", [8, 48])
def test_the_pages_of_a_sample_hold_it(tmp_path: Path, side: int) -> None:
    """Small values lie in a leaf of LMDB's tree, large ones in pages of their own."""
    all_images = images(side, 23)
    root = image_dataset(tmp_path, all_images, shards=3, test_shards=1)
    manifest = read_manifest(root)
    chosen = [manifest.shards[index] for index in manifest.splits["train"].shards]
    indices = np.array([15, 0, 7, 8, 3])
    pieces = read_rates._sample_pieces(root, chosen, indices, 0)
    for index, piece in zip(indices, pieces, strict=True):
        content = (root / chosen[piece.file].path).read_bytes()[piece.offset : piece.offset + piece.bytes]
        assert all_images[index][0].tobytes() in content
        assert (piece.offset % PAGE, len(content)) == (0, piece.bytes)
        assert piece.bytes <= side * side * 3 + 2 * PAGE


def test_the_pages_of_a_row_of_tokens_hold_it(tmp_path: Path) -> None:
    """Two rows of 2,000 ids in a value; of a value only the pages of the row count."""
    rows = np.arange(4 * 2000, dtype="<u2").reshape(2, 2, 2000)
    write_shard(tmp_path / "shard-00000.lmdb", [value.tobytes() for value in rows])
    data = tmp_path / "shard-00000.lmdb" / "data.mdb"
    size = data.stat().st_size
    shard = SequenceShard(
        name="shard-00000.lmdb", split="train", samples=4, length=1999, rows=2, tokens=7996, bytes=size, chunk_bytes=size,
        chunks=("0" * 32,), blake3="0" * 64,
    )  # fmt: skip
    found = read_rates._sample_pieces(tmp_path, [shard], np.arange(4), 2)
    for sample, piece in enumerate(found):
        assert rows[sample // 2, sample % 2].tobytes() in data.read_bytes()[piece.offset : piece.offset + piece.bytes]
        assert piece.bytes <= 4000 + 2 * PAGE


def test_every_way_is_measured_in_every_repeat(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, images(48, 40), shards=3)
    passes: list[tuple[int, int]] = []
    found = measure_reads(root, read_manifest(root), Options(repeats=2, threads=3), lambda done, total: passes.append((done, total)))
    assert passes == [(done, 8) for done in range(1, 9)]
    mount = nearest_mount(root)[1]
    memories = {"warm"} if mount is not None and mount.kind == "memory" else {"cold", "warm"}
    assert {(rate.access, rate.memory) for rate in found.rates} == {
        (access, memory) for access in ("random", "reader") for memory in memories
    }
    assert all(len(rate.bytes_per_s) == len(rate.samples_per_s) == 2 and min(rate.samples_per_s) > 0 for rate in found.rates)
    assert (found.supply.access, found.supply.memory) == ("random", min(memories))
    assert found.sample_bytes == read_manifest(root).bytes / 40


@pytest.mark.parametrize("sized", [True, False])
def test_the_reader_reads_each_sample_from_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sized: bool) -> None:
    root = image_dataset(tmp_path, images(48, 80), shards=3, encoder=jpeg, sized=sized)
    monkeypatch.setattr(read_rates, "BATCH", 4)
    monkeypatch.setattr(shards, "IN_MEMORY", 1 << 40)
    extents: list[object] = []
    read = shards._read_extent
    monkeypatch.setattr(shards, "_read_extent", lambda *extent: (extents.append(extent), read(*extent))[1])
    assert read_rates._read_as_training(root, "train", np.arange(80), 60.0) > 0
    assert len(extents) == 80
    shards.close_all()


def test_memory_is_never_cold(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb+") as file:
        file.write(bytes(4 * PAGE))
        file.flush()
        found = read_rates._drop_and_check([file.fileno()], [Piece(0, 0, PAGE)], TMPFS)
    assert found == (False, "no cold rate: tmpfs is memory")


def test_what_a_process_has_mapped_is_not_called_cold(disk: Path) -> None:
    (disk / "file").write_bytes(bytes(64 * PAGE))
    pieces = [Piece(0, PAGE * number, PAGE) for number in range(64)]
    with (disk / "file").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert sum(mapped[::PAGE]) == 0
            found = read_rates._drop_and_check([file.fileno()], pieces, nearest_mount(disk)[1])
        assert not found[0]
        assert "another process has them mapped" in found[1]
        assert read_rates._drop_and_check([file.fileno()], pieces, nearest_mount(disk)[1]) == (True, "")


def test_small_samples_that_share_a_page_are_cold(disk: Path) -> None:
    """The look at one of them reads the page, so that the next ones would be found in memory."""
    (disk / "file").write_bytes(bytes(4 * PAGE))
    pieces = [Piece(0, PAGE * (number % 4), PAGE) for number in range(1000)]
    with (disk / "file").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert read_rates._drop_and_check([file.fileno()], pieces, nearest_mount(disk)[1]) == (True, "")


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, images(48, 8), shards=2)
    path = root / "shard-00001.lmdb" / "data.mdb"
    os.truncate(path, path.stat().st_size - PAGE)
    with pytest.raises(DatasetError, match=r"shard-00001.*its manifest says"):
        measure_reads(root, read_manifest(root), Options(repeats=1), lambda *_: None)


def test_a_sample_that_the_reader_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, images(48, 8), shards=2)
    path = root / "shard-00001.lmdb" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(encode(3, 48, 48, bytes(6912), 0)[:6], bytes(6)))
    with pytest.raises(DatasetError, match=r"shard-00001.lmdb, sample 0000000"):
        measure_reads(root, read_manifest(root), Options(repeats=1), lambda *_: None)


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(100))
    with (tmp_path / "short").open("rb") as file, pytest.raises(DatasetError, match="short became shorter"):
        read_rates._read([file.fileno()], [Piece(0, 0, 100), Piece(0, 90, 20)], Options(threads=2))


def test_what_is_read_when_time_is_over_is_the_first_of_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    pieces = [Piece(0, 10 * number, 10) for number in range(100)]
    with (tmp_path / "file").open("rb") as file:
        done = read_rates._read([file.fileno()], pieces, Options(threads=4, seconds=0.0))
        assert (done.pieces, done.bytes) == (4, 40)
        assert read_rates._read([file.fileno()], pieces, Options(threads=4)).bytes == 1000
