"""Values in LMDB's map, and values that threads read from the file: the same bytes, and errors in place of signals."""

import contextlib
import ctypes
import mmap
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from data_prep.reader import DatasetChanged, ReaderError, memory, open_dataset, shards
from tests.data_prep.reader.small import image_dataset, write_shard

RANDOM = np.random.default_rng(0)


def pictures(count: int, side: int) -> list[tuple[Any, int]]:
    return [(RANDOM.integers(0, 256, (side, side, 3), np.uint8), label) for label in range(count)]


def by_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_without_disk", shards.IN_MEMORY)


def by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_without_disk", 0)
    monkeypatch.setattr(shards, "IN_MEMORY", 1 << 40)


def past_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads(monkeypatch)
    monkeypatch.setattr(shards, "free_memory", lambda: 0)


def by_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.6 has no os.preadv."""
    by_threads(monkeypatch)
    monkeypatch.setattr(shards, "_DIRECT", 0)


WAYS = (by_map, by_threads, past_the_page_cache, by_old_python)


@pytest.fixture(autouse=True)
def _nothing_is_open() -> Iterator[None]:
    shards.close_all()
    shards._is_large.cache_clear()
    yield
    shards.close_all()
    shards._is_large.cache_clear()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("side", [4, 60], ids=["small", "large"])
@pytest.mark.parametrize("ahead", [False, True])
def test_each_way_brings_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Any], None], side: int, *, ahead: bool
) -> None:
    way(monkeypatch)
    images = pictures(60, side)
    split = open_dataset(str(image_dataset(tmp_path, images, shards=3))).split("train")
    batches = [RANDOM.permutation(60)[:size] for size in (1, 60, 17, 4, 5, 59)]
    if ahead:
        split.prefetch(batches[0])
    for number, batch in enumerate(batches):
        if ahead and number + 1 < len(batches):
            split.prefetch(batches[number + 1])
        found, labels = split.read_many(batch)
        np.testing.assert_array_equal(found, np.stack([images[index][0] for index in batch]))
        assert labels.tolist() == batch.tolist()
    assert not shards._announced
    for threads in shards._readers:
        threads.shutdown()  # they may still bring the next piece of a shard to the page cache
    shards._readers.clear()
    assert {shard.users for shard in shards._open.values()} == {0}
    if way is past_the_page_cache:
        assert {shard.direct for shard in shards._open.values()} == {True}, "the file system of the tests reads past the page cache"


@pytest.mark.processes
def test_a_forked_child_unmaps_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not get the memory into which values are read, so its own memory lies there."""
    by_threads(monkeypatch)
    split = open_dataset(str(image_dataset(tmp_path, pictures(60, 60)))).split("train")
    split.prefetch(range(30))
    split.read_many(range(60))
    sizes = [len(memory) for memory in (*shards._spare, *(reading._memory for reading in shards._announced.values()))]
    assert len(sizes) == 2
    pid = os.fork()
    if pid == 0:
        own = [mmap.mmap(-1, size) for size in sizes * 4]
        split.read_many([3])
        os._exit(sum(memory[-1] for memory in own))
    assert os.waitpid(pid, 0)[1] == 0


def test_spare_memory_changes_hands_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else a thread could take what another has just dropped."""

    class Spare(list[mmap.mmap]):
        def clear(self) -> None:
            locked.append(shards._lock.locked())
            super().clear()

    locked: list[bool] = []
    by_map(monkeypatch)
    monkeypatch.setattr(shards, "_spare", Spare())
    open_dataset(str(image_dataset(tmp_path, pictures(4, 60)))).split("train").read_many(range(4))
    assert locked == [True]


def test_the_values_of_a_page_are_located_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_map(monkeypatch)
    images = pictures(9, 60)
    split = open_dataset(str(image_dataset(tmp_path, images, shards=3))).split("train")
    located: list[bytes] = []
    descend = shards._Shard._descend
    monkeypatch.setattr(shards._Shard, "_descend", lambda shard, key: (located.append(key), descend(shard, key))[1])
    for batch in ([8, 0, 3, 2], [3, 8, 1], [0, 1, 4]):
        np.testing.assert_array_equal(split.read_many(batch)[0], np.stack([images[index][0] for index in batch]))
    assert located == [b"00000002", b"00000000", b"00000000"]
    shards.close_all()
    split.read_many([0, 8])
    assert located[3:] == [b"00000000", b"00000002"], "another opening has another map"


@pytest.mark.parametrize("offset", [0, 10, 12, 16], ids=["number", "kind", "end of the nodes", "first node"])
def test_a_damaged_page_on_the_way_to_a_value_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    by_map(monkeypatch)
    root = image_dataset(tmp_path, pictures(4, 60), shards=1)
    (file,) = root.glob("*/data.mdb")
    content = bytearray(file.read_bytes())
    headers = {page: struct.unpack_from("<QHH", content, page) for page in range(0, len(content), 4096)}
    (leaf,) = (page for page, header in headers.items() if header == (page // 4096, 0, 2))  # its number, padding, and that it is a leaf
    content[leaf + offset : leaf + offset + 2] = b"\xfd\xff"
    file.write_bytes(content)
    with pytest.raises(DatasetChanged, match=r"shard-00000.lmdb.* sample 00000000.*stage the dataset again"):
        open_dataset(str(root)).split("train").read_many([0])


@pytest.mark.parametrize(("number", "digit"), [(7, b"3"), (0, b"8")], ids=["inside of its page", "first of its page"])
def test_a_key_with_a_damaged_digit_is_no_other_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, digit: bytes) -> None:
    """One bit makes a 3 of a 7."""
    by_map(monkeypatch)
    root = image_dataset(tmp_path, pictures(300, 20), shards=1)
    (file,) = root.glob("*/data.mdb")
    content = bytearray(file.read_bytes())
    at = content.rindex(b"%08d" % number)
    content[at + 7 : at + 8] = digit
    file.write_bytes(content)
    split = open_dataset(str(root)).split("train")
    for index in (number, int(digit), *range(300)):
        with contextlib.suppress(DatasetChanged):
            assert split.read_many([index])[1].tolist() == [index]
    with pytest.raises(DatasetChanged, match=f"sample 0000000{number}: page"):
        split.read_many([number])


def test_a_sample_beyond_what_the_header_counts_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_map(monkeypatch)
    root = image_dataset(tmp_path, pictures(4, 60), shards=1)
    split = open_dataset(str(root)).split("train")
    split.read_many([1])
    shard = shards._open[split.paths[0]]
    monkeypatch.setattr(shard, "extents", shard.extents[:2] * 0)
    monkeypatch.setattr(shard, "flat", shard.extents.reshape(-1).data)
    with pytest.raises(DatasetChanged, match=r"shard-00000.lmdb, sample 00000002: page \d+ names no place in the file where it lies"):
        split.read_many([2])
    assert split.read_many([1])[1].tolist() == [1]


def test_what_was_announced_and_is_not_read_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads(monkeypatch)
    images = pictures(40, 60)
    split = open_dataset(str(image_dataset(tmp_path, images))).split("train")
    for start in range(20):
        split.prefetch([start, start + 20])
    assert len(shards._announced) == shards.MAX_ANNOUNCED
    assert [split.read(index)[1] for index in range(40)] == list(range(40))
    split.prefetch([])
    with pytest.raises(IndexError, match="sample 40 of split 'train', which has 40"):
        split.prefetch([40])


def test_what_was_announced_keeps_no_memory_once_values_come_from_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader process may get another batch than was announced, when a further process is used."""
    by_threads(monkeypatch)
    split = open_dataset(str(image_dataset(tmp_path, pictures(40, 60)))).split("train")
    split.prefetch(range(20))
    by_map(monkeypatch)
    assert split.read_many(range(20, 40))[1].tolist() == list(range(20, 40))
    assert not shards._announced
    shards._readers.pop().shutdown()
    assert {shard.users for shard in shards._open.values()} == {0}


def test_what_is_announced_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads(monkeypatch)
    split = open_dataset(str(image_dataset(tmp_path, pictures(20, 60)))).split("train")
    extents: list[object] = []
    read = shards._read_extent
    monkeypatch.setattr(shards, "_read_extent", lambda *extent: (extents.append(extent), read(*extent))[1])
    for start in (0, 10):
        for announced in (range(start, start + 10), range(10, 20)):
            split.prefetch(announced)
        assert split.read_many(range(start, start + 10))[1].tolist() == list(range(start, start + 10))
    assert len(extents) == 20


def test_more_shards_than_may_be_open_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(60, 60)
    split = open_dataset(str(image_dataset(tmp_path, images, shards=20))).split("train")
    monkeypatch.setattr(shards, "_max_open", 8)
    monkeypatch.setattr(shards, "_most_together", 2)
    for way in (by_map, by_threads):
        way(monkeypatch)
        split.prefetch(range(60))
        assert split.read_many(range(59, -1, -1))[1].tolist() == list(range(59, -1, -1))
        assert len(shards._open) <= 8


def test_values_without_a_disk_lead_to_the_map_and_a_fault_leads_back(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_without_disk", 0)
    images = pictures(300, 40)
    root = image_dataset(disk, images, shards=1)
    split = open_dataset(str(root)).split("train")
    split.read_many(range(100))  # just written: in memory
    assert shards._without_disk == 100
    split.read_many(range(100, 300))
    assert shards._without_disk == 300
    read: list[object] = []
    monkeypatch.setattr(shards, "_Reading", lambda *_: read.append(None))
    split.prefetch(range(100))
    split.read_many(range(100))
    assert not read

    with (root / "shard-00000.lmdb" / "data.mdb").open("rb") as file:
        os.fsync(file.fileno())
        shards.close_all()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.madvise(mmap.MADV_RANDOM)
        assert mapped[-1] >= 0
        if resource.getrusage(resource.RUSAGE_THREAD).ru_majflt == before:
            pytest.skip("this file system keeps its pages")
    split.read_many(range(100))
    assert shards._without_disk == 0


def in_memory(path: Path) -> float:
    """Which part of a file the page cache holds (mincore(2))."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_ubyte.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), pages)
        del first
        assert failed == 0, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in pages) / len(pages)


@pytest.mark.slow  # the quick tests lie in memory, where a file cannot be forgotten
@pytest.mark.parametrize(("side", "all_of_it"), [(40, True), (160, False)], ids=["small", "large"])
def test_shards_of_small_values_come_to_the_page_cache_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, all_of_it: bool
) -> None:
    """Large values cost a disk their bytes: there only what is asked for is read."""
    monkeypatch.setattr(shards, "_without_disk", 0)
    monkeypatch.setattr(shards, "PIECE", 1 << 20)
    root = image_dataset(tmp_path, pictures(1000 if all_of_it else 60, side), shards=2)
    files = sorted(root.glob("*/data.mdb"))
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if max(map(in_memory, files)) > 0:
        pytest.skip("this file system keeps its pages")
    split = open_dataset(str(root)).split("train")
    pieces = sum(-(-path.stat().st_size // shards.PIECE) for path in files)
    for number in range(pieces):
        split.prefetch([0, len(split) - 1])
        split.read_many([0, len(split) - 1])
        assert number or min(map(in_memory, files)) < 0.9
    shards._readers[0].shutdown()
    shards._readers.clear()
    assert {shard.users for shard in shards._open.values()} == {0}
    if not all_of_it:
        assert max(map(in_memory, files)) < 0.9
        return
    ended_by = time.monotonic() + 60
    while min(map(in_memory, files)) < 1:  # the last requests of a piece may be under way
        assert time.monotonic() < ended_by, [in_memory(path) for path in files]
        time.sleep(0.01)


def test_read_past_the_page_cache_nothing_counts_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_without_disk", 0)
    monkeypatch.setattr(shards, "free_memory", lambda: 0)
    split = open_dataset(str(image_dataset(tmp_path, pictures(300, 40), shards=1))).split("train")
    split.read_many(range(300))
    assert shards._without_disk == 0


def damaged(root: Path, index: int, change: Callable[[bytearray, int], None]) -> Any:
    """The split of a dataset of one shard, after `change` of its file at the node of a sample."""
    path = root / "shard-00000.lmdb" / "data.mdb"
    content = bytearray(path.read_bytes())
    at = content.index(b"%08d" % index)
    change(content, at)
    path.write_bytes(content)
    return open_dataset(str(root)).split("train")


@pytest.mark.parametrize("way", [by_map, by_threads], ids=lambda way: way.__name__)
def test_a_page_or_a_length_out_of_the_file_is_an_error_and_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Any], None]
) -> None:
    """Of the node of a sample: the number of the first page of its value, or its length (lmdb 0.9, struct MDB_node)."""
    way(monkeypatch)
    fields = [(8, struct.pack("<Q", 1 << 40)), (-8, struct.pack("<H", 0)), (-6, struct.pack("<H", 60000)), (-4, b"\0\0"), (-6, b"\xff" * 4)]
    for number, (offset, field) in enumerate(fields):
        root = image_dataset(tmp_path, pictures(40, 60), shards=1, name=f"number{number}")

        def change(content: bytearray, at: int, offset: int = offset, field: bytes = field) -> None:
            content[at + offset : at + offset + len(field)] = field

        split = damaged(root, 7, change)
        for wanted in ([7], range(7, 40)):
            with pytest.raises(ReaderError, match=r"shard-00000.lmdb, sample 00000007: "):
                split.read_many(wanted)
            assert {shard.users for shard in shards._open.values()} == {0}
        shards.close_all()


@pytest.mark.processes
@pytest.mark.parametrize("way", [by_map, by_threads], ids=lambda way: way.__name__)
def test_whatever_is_damaged_is_an_error_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Any], None]) -> None:
    """Bytes of the pages that lead to the values: each damage is read in a process of its own."""
    way(monkeypatch)
    root = image_dataset(tmp_path, pictures(100, 40), shards=1)
    path = root / "shard-00000.lmdb" / "data.mdb"
    whole = path.read_bytes()
    heads = [struct.unpack_from("<QHH", whole, at) for at in range(0, len(whole), 4096)]
    pages = [at for at, (number, _, kind) in enumerate(heads) if number == at and kind in (1, 2, 8)]
    random = np.random.default_rng(5)
    for page, at, size in zip(random.choice(pages, 150), random.integers(0, 4090, 150), random.choice([1, 2, 4], 150), strict=True):
        first = int(page) * 4096 + int(at)
        path.write_bytes(whole[:first] + random.bytes(int(size)) + whole[first + int(size) :])
        pid = os.fork()
        if pid == 0:
            try:
                with contextlib.suppress(ReaderError):
                    open_dataset(str(root)).split("train").read_many(range(100))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0, first


@pytest.mark.processes
def test_nothing_behind_a_file_is_touched_where_it_ends_in_a_value_of_two_bytes(tmp_path: Path) -> None:
    """The map is given a place before a page that nobody may read."""
    write_shard(tmp_path / "shard", [b"ab"])
    code = """
import ctypes, sys
from data_prep.reader import shards
size, anonymous = int(sys.argv[2]), 34
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
pages = sorted(libc.mmap(None, size, 0, anonymous, -1, 0) for _ in range(200))
libc.munmap(pages[100], size)
shards.IN_MEMORY = int(sys.argv[3])
shards.use_many([(sys.argv[1], size, b"00000000")], lambda _, values: print(bytes(values[0])))
"""
    size = (tmp_path / "shard" / "data.mdb").stat().st_size
    for in_memory in (0, 1 << 40):
        argv = [sys.executable, "-c", code, str(tmp_path / "shard"), str(size), str(in_memory)]
        found = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
        assert (found.returncode, found.stdout) == (0, "b'ab'\n"), found.stderr


@pytest.mark.parametrize("header", [0, 4096])
@pytest.mark.parametrize(("offset", "value"), [(16, 0), (20, 2), (40, 0), (40, 1), (40, 8192), (40, 2**32 - 1)])
def test_a_header_that_is_not_that_of_lmdb_is_an_error_and_no_signal(tmp_path: Path, header: int, offset: int, value: int) -> None:
    """Its magic number, its version (LMDB 1.0 has another), and the bytes of a page (lmdb 0.9, struct MDB_meta)."""
    root = image_dataset(tmp_path, pictures(3, 8), shards=1)
    path = root / "shard-00000.lmdb" / "data.mdb"
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, header + offset, value)
    path.write_bytes(content)
    with pytest.raises(
        DatasetChanged, match=r"shard-00000.lmdb cannot be opened \(its header is not .*LMDB 0.9\): stage the dataset again"
    ):
        open_dataset(str(root)).split("train").read(0)


@pytest.mark.parametrize("content", [b"", b"\n", b"No LMDB. " * 1000])
def test_a_file_that_is_no_lmdb_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(DatasetChanged, match=r"cannot be opened \((its header is not that of|cannot mmap an empty file)"):
        shards.position((str(tmp_path), len(content), b"00000000"))


def test_the_later_of_the_two_headers_holds(tmp_path: Path) -> None:
    """LMDB writes them in turn, and either may be the later one."""
    write_shard(tmp_path / "shard", [b"first"])
    with lmdb.open(str(tmp_path / "shard"), map_size=1 << 30, lock=False, lib_version=0) as env:
        for number in range(1, 4):
            with env.begin(write=True) as txn:
                txn.put(b"%08d" % number, b"later")
            size = (tmp_path / "shard" / "data.mdb").stat().st_size
            assert shards.position((str(tmp_path / "shard"), size, b"%08d" % number))[1] == 5
            shards.close_all()


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_map(monkeypatch)
    root = image_dataset(tmp_path, pictures(40, 60), shards=1)
    split = open_dataset(str(root)).split("train")
    assert split.read_many(range(40))[1].tolist() == list(range(40))
    os.truncate(root / "shard-00000.lmdb" / "data.mdb", 8192)
    with pytest.raises(DatasetChanged, match=r"shard-00000.lmdb has 8192 bytes, its manifest says \d+: stage the dataset again"):
        split.read_many(range(40))


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads(monkeypatch)
    root = image_dataset(tmp_path, pictures(40, 60), shards=1)
    path = root / "shard-00000.lmdb" / "data.mdb"
    split = open_dataset(str(root)).split("train")
    assert split.read_many(range(40))[1].tolist() == list(range(40))
    content = path.read_bytes()
    last = content.index(b"%08d" % 39)
    page = struct.unpack_from("<Q", content, last + 8)[0]
    if page * 4096 < last:
        pytest.skip("this LMDB puts its keys behind the values")
    os.truncate(path, (page + 1) * 4096)
    with pytest.raises(
        DatasetChanged, match=r"shard-00000.lmdb, sample 00000039: the file ends in the midst of it: stage the dataset again"
    ):
        split.read(39)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("shards_fit", "users", "words"), [(0.5, "[]", "do not fit into the addresses"), (1.5, "[0]", "no memory to read")]
)
def test_too_little_memory_is_said_and_leaves_nothing_open(tmp_path: Path, shards_fit: float, users: str, words: str) -> None:
    """For the map of a shard, or for what is read of it (ulimit -v)."""
    root = image_dataset(tmp_path, pictures(30, 512), shards=1)
    code = """
import resource, sys
import numpy as np
from data_prep.reader import open_dataset, shards
split = open_dataset(sys.argv[1]).split("train")
out = np.empty((30, 512, 512, 3), np.uint8)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
limit = 1024 * int(status["VmSize"].split()[0]) + int(sys.argv[2])
shards.IN_MEMORY = 1 << 40
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    split.read_many(range(30), out=out)
except MemoryError as error:
    print(error)
print([shard.users for shard in shards._open.values()])
"""
    argv = [sys.executable, "-c", code, str(root), str(int(shards_fit * (root / "shard-00000.lmdb" / "data.mdb").stat().st_size))]
    found = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]).stdout.splitlines()
    assert words in found[0]
    assert found[1] == users


def test_a_cut_shard_is_found_when_it_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads(monkeypatch)
    root = image_dataset(tmp_path, pictures(40, 60), shards=1)
    path = root / "shard-00000.lmdb" / "data.mdb"
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(DatasetChanged, match="its manifest says"):
        open_dataset(str(root)).split("train").prefetch([0])


def test_a_pipe_in_place_of_a_shard_is_an_error_and_no_wait(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, pictures(2, 8))
    data = root / "shard-00000.lmdb" / "data.mdb"
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(DatasetChanged, match="has 0 bytes, its manifest says"):
        open_dataset(str(root)).split("train").read(0)


def test_an_error_of_the_disk_names_shard_and_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_threads(monkeypatch)
    split = open_dataset(str(image_dataset(tmp_path, pictures(4, 60), shards=1))).split("train")
    split.read(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next(iter(shards._open.values())), "descriptor", os.open(tmp_path, os.O_RDONLY))
        with pytest.raises(DatasetChanged, match=r"shard-00000.lmdb, sample 00000002: \[Errno 21\] Is a directory"):
            split.read(2)


@pytest.mark.parametrize(
    ("cgroup", "files", "large"),
    [
        ("0::/\n", {}, [False, False, True]),
        ("0::/job/step\n", {"memory.max": "max", "job/memory.max": "5000", "job/step/memory.max": "9000"}, [False, True, True]),
        ("9:name=systemd:/\n4:memory:/job\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, [False, False, True]),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "4000"}, [False, True, True]),
    ],
)
def test_memory_is_what_machine_and_cgroup_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], large: list[bool]
) -> None:
    content = {"/proc/meminfo": "MemTotal: 999 kB\nMemAvailable:   10 kB\n", "/proc/self/cgroup": cgroup}
    content.update({f"/sys/fs/cgroup/{name}": text for name, text in files.items()})
    monkeypatch.setattr(memory, "_lines", lambda path: content.get(path, "").splitlines())
    assert [size > memory.free_memory() for size in (3000, 8000, 20000)] == large
