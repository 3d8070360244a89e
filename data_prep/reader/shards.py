"""Open the shards of this process, and bring the values of their samples: a bounded number of maps, shared by all datasets.

The pages of LMDB are read here, without LMDB: a search of its own reads the value as well, ends by a signal where a page is damaged, and
wants one environment per file and process, and none that was inherited by fork. A file shorter than its map kills the process with SIGBUS
at the first touch, so its size is compared with the manifest before it is mapped.

Values that are in memory are used in the map, without a copy. Those that are on disk the map would bring page by page, one fault after the
other: there threads read whole values from the file, several at a time. Which of the two holds is measured while samples are read. A
dataset that is larger than memory is read past the page cache, which would not keep it.
"""

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import resource
import struct
import threading
from bisect import bisect_right
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from . import pixels
from .errors import DatasetChanged, ReaderError
from .memory import free_memory

READERS = 8  # threads: so many requests a disk has at a time from this process
GROUP = 4  # values that one of them reads in turn, which are then used together
IN_MEMORY = 256  # values that no disk was asked for, one after the other: from then on the map is used
MAX_ANNOUNCED = 4  # batches that `prefetch` announced and nobody has asked for yet
SMALL = 65536  # bytes: smaller values cost a disk and its driver more than their bytes do, so the page cache gets their shards in one go
PIECE = 16 << 20  # bytes of a shard that are brought to the page cache beside an announced batch
_ADVISED = 1 << 17  # bytes: of more at a time the kernel may only take the beginning
_SIZES, _NUMBER, _PAGE = struct.Struct("<HHH"), struct.Struct("<Q"), struct.Struct("<Q2xHH")
_META = struct.Struct("<16xII16xI76xQQ8xQ")  # of pages 0 and 1: magic, version, bytes of a page, values, root, transaction
_MADV_RANDOM = 1  # what lies behind a page that is touched is not read; the module has the number from Python 3.8 on
_P_LEAF, _F_BIGDATA = 2, 1
_DEEPEST = 16  # pages from the root to a value; a tree that is not damaged has three
_PAGE_HEADER = 16
_SMALLEST = 16  # bytes of a node with its key of eight digits
_DIRECT = getattr(os, "O_DIRECT", 0) if hasattr(os, "preadv") else 0  # which reads to an address of the caller's, from Python 3.7 on
_ADVICE = "stage the dataset again; the copy was changed after it was checked"

SampleKey = Tuple[str, int, bytes]
"""The place of a sample: the directory of its shard, the bytes that the manifest says of the shard, its key."""
Use = Callable[[int, pixels.Values], Any]


class Samples:
    """The samples of a split, 0 .. len-1, in the order of its shards."""

    def __init__(self, root: str, manifest: Dict[str, Any], name: str) -> None:
        if name not in manifest["splits"]:
            raise ReaderError("%s has no split %r; it has: %s" % (root, name, ", ".join(sorted(manifest["splits"]))))
        chosen = [manifest["shards"][index] for index in manifest["splits"][name]["shards"]]
        self.name = name
        self.paths = [os.path.join(root, shard["name"]) for shard in chosen]
        self.bytes = [shard["bytes"] for shard in chosen]
        self.rows = [1] * len(chosen)
        """How many samples a value of each shard has."""
        self.starts = [0]
        for shard in chosen:
            self.starts.append(self.starts[-1] + shard["samples"])

    def __len__(self) -> int:
        return self.starts[-1]

    def prefetch(self, indices: Sequence[int]) -> None:
        """Begin to read these samples, which `read_many` has to get in the same order, while others are used. It never changes a result."""
        prefetch(self._places([int(index) for index in indices]))

    def _number(self, index: int) -> Tuple[int, int]:
        """Return the shard of a sample, and its number there."""
        if not 0 <= index < self.starts[-1]:
            raise IndexError("sample %d of split %r, which has %d" % (index, self.name, len(self)))
        shard = bisect_right(self.starts, index) - 1
        return shard, index - self.starts[shard]

    def _places(self, indices: Iterable[int]) -> List[SampleKey]:
        numbers = map(self._number, indices)
        return [(self.paths[shard], self.bytes[shard], b"%08d" % (number // self.rows[shard])) for shard, number in numbers]


class _Extent(NamedTuple):
    """The place of a value in its file. A large one has whole pages, of which the first one begins with a header."""

    shard: Any
    key: bytes
    start: int
    length: int

    @property
    def large(self) -> bool:
        """Return True if the value has pages of its own: others lie behind the nodes of theirs."""
        return self.start % self.shard.page_bytes == _PAGE_HEADER

    @property
    def span(self) -> int:
        """Return how many bytes the pages of a large value have."""
        page = self.shard.page_bytes
        return (_PAGE_HEADER + self.length + page - 1) // page * page if self.large else 0

    @property
    def mapped(self) -> memoryview:
        """Return the value in the map. Its pages come when they are touched."""
        return self.shard.view[self.start : self.start + self.length]


class _Shard:
    """A file of LMDB as a map, and a descriptor for what is read without the map."""

    def __init__(self, path: str, num_bytes: int) -> None:
        self.path, self.num_bytes = path, num_bytes
        self.users = 0
        """Batches and groups of values that need it now."""
        self.brought = 0
        """Bytes from its beginning on that the page cache was given besides the values that were read."""
        self.descriptor, self.direct = _open_file(os.path.join(path, "data.mdb"))
        try:
            self.check_size()
            self.view = memoryview(mmap.mmap(self.descriptor, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ))
            self.base = np.frombuffer(self.view, np.uint8).ctypes.data
            ctypes.CDLL(None).madvise(ctypes.c_void_p(self.base), ctypes.c_size_t(num_bytes), _MADV_RANDOM)
            self.page_bytes = self._header(0)[2]
            headers = self._header(0), self._header(self.page_bytes)
            if not self.page_bytes or any(header[:3] != (0xBEEFC0DE, 1, self.page_bytes) for header in headers):
                raise OSError("its header is not that of a file of LMDB 0.9")
            entries, self.root, _ = max(headers, key=itemgetter(5))[3:]  # that of the later transaction holds
            self.extents = np.zeros((min(entries, num_bytes // _SMALLEST), 2), np.int64)  # a damaged header may have any number
            """Where each value begins and how long it is, by its number; 0 before a value of its page was asked for."""
            self.flat = self.extents.reshape(-1).data
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; it is unmapped when nobody has a value of it any more."""
        os.close(self.descriptor)

    def check_size(self) -> None:
        """Raise DatasetChanged where the file has another size than the manifest says."""
        found = os.fstat(self.descriptor).st_size
        if found != self.num_bytes:
            raise DatasetChanged("%s has %d bytes, its manifest says %d: %s" % (self.path, found, self.num_bytes, _ADVICE))

    def _header(self, start: int) -> Tuple[Any, ...]:
        return _META.unpack(bytes(self.view[start:][: _META.size]).ljust(_META.size))  # a damaged start may lie behind the file

    def find(self, key: bytes) -> Tuple[int, int]:
        """Return where a value begins and how long it is. LMDB's own search reads it too, page by page from a disk that has to be waited
        for; here all values of a page are located together, once."""
        at = 2 * int(key)
        if at >= len(self.flat) or not self.flat[at + 1]:  # the length is written last, as another thread may read here
            self._descend(key)
        return self.flat[at], self.flat[at + 1]

    def _descend(self, key: bytes) -> None:
        """Find the values of the page that a key leads to.

        A page has a header and where in it each node begins; a node has sizes and flags, its key, and the value, or of a large one the
        number of the page where that begins. Of the page below it, the sizes and flags are the number (lmdb 0.9, mdb.c).
        """
        number = self.root
        try:
            for _ in range(_DEEPEST):
                page = self.view[number * self.page_bytes :][: self.page_bytes]
                named, kind, end = _PAGE.unpack_from(page)
                if named != number or end > len(page):
                    break
                nodes = page[_PAGE_HEADER:end].cast("H")
                if kind & _P_LEAF:
                    self._note_page(key, number * self.page_bytes, np.frombuffer(page, np.uint8), np.array(nodes, np.int64))
                    if int(key) >= len(self.extents) or not self.extents[int(key), 1]:
                        raise self.changed(key, "page %d names no place in the file where it lies" % number)
                    return
                first, last = 0, len(nodes)
                while last - first > 1:
                    middle = (first + last) // 2
                    first, last = (middle, last) if _key_of(page, nodes[middle]) <= key else (first, middle)
                low, high, flags = _SIZES.unpack_from(page, nodes[first])
                number = low + (high << 16) + (flags << 32)
        except (IndexError, TypeError, struct.error):  # what stands there points out of its page
            pass
        raise self.changed(key, "page %d, which leads to it, is damaged" % number)

    def _note_page(self, key: bytes, first: int, page: np.ndarray, nodes: np.ndarray) -> None:
        """Note where the values of a leaf page lie that begins at byte `first`. Its samples follow one another, and `key` is among them:
        else a damaged digit would make one sample another, and nothing is noted. Values that make no sense are left out."""
        nodes = nodes[nodes <= len(page) - _SMALLEST]
        fields = page[nodes[:, np.newaxis] + np.arange(_SMALLEST)]
        low, high, flags, key_bytes = fields[:, :8].copy().view("<u2").T.astype(np.int64)
        numbers = (fields[:, 8:].astype(np.int64) - ord("0")) @ 10 ** np.arange(7, -1, -1)
        if not 0 <= numbers[0] <= int(key) <= numbers[-1] or (np.diff(numbers) != 1).any():
            return
        behind = np.minimum(nodes[:, np.newaxis] + _SMALLEST + np.arange(8), len(page) - 1)  # the number of a page, of a large value
        pages = np.minimum(page[behind].view("<u8")[:, 0], self.num_bytes).astype(np.int64)
        starts = np.where(flags & _F_BIGDATA, pages * self.page_bytes + _PAGE_HEADER, first + nodes + _SMALLEST)
        sizes = low + (high << 16)
        whole = (key_bytes == 8) & (sizes > 0) & (starts + sizes <= self.num_bytes) & (numbers < len(self.extents))
        self.extents[numbers[whole]] = np.stack([starts, sizes], axis=1)[whole]

    def changed(self, key: bytes, what: str) -> DatasetChanged:
        """Return the error that says what is wrong with a sample."""
        return DatasetChanged("%s, sample %s: %s: %s" % (self.path, key.decode(), what, _ADVICE))


def _locate(places: Sequence[SampleKey]) -> List[_Extent]:
    """Return where these values lie, whose shards are open. None of their pages is touched, and none lies outside of its file."""
    shards = [_open[path] for path, _, _ in places]
    return [_Extent(shard, key, *shard.find(key)) for shard, (_, _, key) in zip(shards, places)]  # noqa: B905 - Python 3.6 knows no `strict`


def _key_of(page: memoryview, node: int) -> bytes:
    return bytes(page[node + 8 :][: page[node + 6] + (page[node + 7] << 8)])


def _mapped(places: Sequence[SampleKey]) -> pixels.Values:
    """Return these values in the maps of their shards, which are open. Their pages come when they are touched."""
    shards = [_open[path] for path, _, _ in places]
    found = [shard.find(key) for shard, (_, _, key) in zip(shards, places)]  # noqa: B905
    views = [shard.view[start : start + length] for shard, (start, length) in zip(shards, found)]  # noqa: B905
    return pixels.Values(views, [shard.base + start for shard, (start, _) in zip(shards, found)])  # noqa: B905


class _Reading:
    """The values of a batch while threads read them, group after group, into memory that is used again."""

    def __init__(self, places: Sequence[SampleKey], ahead: bool = False) -> None:
        with _current_lock():
            self._shards = _hold(places)
            try:
                located = _locate(places)
                self._bytes = sum(one.span for one in located)
                self._memory = _memory(self._bytes)
            except BaseException:
                _release(self._shards)
                raise
            submit = _threads().submit if ahead or len(places) > GROUP else _at_once  # type: Any
        view, at = memoryview(self._memory), 0
        groups = []  # type: List[List[Any]]
        for number, one in enumerate(located):
            if number % GROUP == 0:
                groups.append([])
            groups[-1].append((one, view[at : at + one.span]))
            at += one.span
        self._left, self._values = len(groups), len(located)
        self._groups = [submit(self._read, group) for group in groups]  # type: List[Future[Tuple[bool, pixels.Values]]]

    def use(self, first: int, function: Use) -> None:
        """Call `function(first, values)` for each group as soon as it is read."""
        global _without_disk
        try:
            for group in self._groups:
                in_memory, values = group.result()
                _without_disk = _without_disk + len(values) if in_memory else 0
                function(first, values)
                first += len(values)
        finally:
            self.end()
            _spare.append(self._memory)

    def bring_more(self) -> None:
        """Let the page cache have the next piece of a shard, if the values are small. Then an epoch, which needs all of them in any order,
        soon finds them there. A batch brings one piece, and not all at once: the program may end soon, and others may use the disk."""
        if self._bytes >= SMALL * self._values:
            return
        with _current_lock():
            for shard in self._shards:
                if shard.brought < shard.num_bytes and not shard.direct and _open.get(shard.path) is shard:
                    shard.users += 1
                    first, shard.brought = shard.brought, shard.brought + PIECE
                    _threads().submit(_bring, shard, first)
                    return

    def end(self) -> None:
        """Wait until no thread reads any more."""
        for group in self._groups:
            group.exception()

    def _read(self, group: List[Any]) -> Tuple[bool, pixels.Values]:
        try:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
            read = [_read_extent(one, view) if one.large else memoryview(bytearray(one.mapped)) for one, view in group]
            from_disk = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock > before
            values = pixels.Values(read, [pixels.address_of(value) for value in read])
            return not from_disk and not any(shard.direct for shard in self._shards), values
        finally:
            with _current_lock():
                self._left -= 1
                if self._left == 0:
                    _release(self._shards)


_open: "OrderedDict[str, _Shard]" = OrderedDict()
_owner = os.getpid()
_lock = threading.Lock()
_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_max_open = 4096 if _files == resource.RLIM_INFINITY else max(8, _files // 4)  # two descriptors each: half of what the process may have
_most_together = _max_open // 4  # shards of one call of `use_many`'s function
_without_disk = 0  # values that were read one after the other without a disk
_announced: "OrderedDict[Tuple[SampleKey, ...], _Reading]" = OrderedDict()
_spare: List[mmap.mmap] = []
_readers: List[ThreadPoolExecutor] = []


def use_many(places: Sequence[SampleKey], function: Use) -> None:
    """Call `function(first, values)` with the values of `places` in their order, once or more: with those from number `first` on. They are
    valid during the call only. Raises DatasetChanged for anything not as in the manifest."""
    with _current_lock():
        reading = _announced.pop(tuple(places), None) if _announced else None
    if reading is not None:
        reading.use(0, function)
        return
    for first, part in _parts(places):
        if waits_for_disk():
            _Reading(part).use(first, function)
        else:
            _use_map(part, first, function)


def prefetch(places: Iterable[SampleKey]) -> None:
    """Begin to read what the next call of `use_many` has, with just these places. It never changes a result. Where values are in memory, or
    this has begun already, it does nothing."""
    if waits_for_disk():
        announced = tuple(places)
        if announced and announced not in _announced and len({path for path, _, _ in announced}) <= _most_together:
            reading = _Reading(announced, ahead=True)
            reading.bring_more()
            with _current_lock():
                _announced[announced] = reading
                while len(_announced) > MAX_ANNOUNCED:
                    _announced.popitem(last=False)


def position(place: SampleKey) -> Tuple[int, int]:
    """Return where in the file of its shard a value begins, and its length. No large value is read."""
    path, num_bytes, key = place
    with _current_lock():
        shard = _opened(path, num_bytes)
        return _locate([(shard.path, num_bytes, key)])[0][2:4]


def waits_for_disk() -> bool:
    """Return whether the values that were read last came from a disk, or too few were read to know: whether `prefetch` does anything."""
    return _without_disk < IN_MEMORY


def close_all() -> None:
    """Close every shard of this process."""
    with _current_lock():
        readings = list(_announced.values())
        _announced.clear()
    for reading in readings:
        reading.end()
    with _current_lock():
        while _open:
            _open.popitem()[1].close()


def _use_map(places: Sequence[SampleKey], first: int, function: Use) -> None:
    """Use the values in the map. Where a fault had to wait for a disk, the next values are read."""
    global _without_disk
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    with _current_lock():
        _spare.clear()
        _announced.clear()  # of a process that has got other batches since
        shards = _hold(places)
    try:
        for shard in shards:
            shard.check_size()  # what is left to a SIGBUS is a file that is cut while this batch is copied
        with _current_lock():
            values = _mapped(places)
        function(first, values)
    finally:
        with _current_lock():
            _release(shards)
    if resource.getrusage(resource.RUSAGE_THREAD).ru_majflt > before:
        _without_disk = 0


def _parts(places: Sequence[SampleKey]) -> Iterator[Tuple[int, Sequence[SampleKey]]]:
    """Yield the places, with the number of the first one, in parts whose shards may be open together."""
    first, paths = 0, {places[0][0]} if places else set()
    for number, (path, _, _) in enumerate(places):
        if path not in paths and len(paths) == _most_together:
            yield first, places[first:number]
            first, paths = number, set()
        paths.add(path)
    if places:
        yield first, places[first:]


def _current_lock() -> Any:
    """Return the lock of this process. Python 3.6 tells nobody of a fork: there its first use in a child finds out."""
    if os.getpid() != _owner:
        _leave_to_parent()
    return _lock


def _leave_to_parent() -> None:
    """Close or forget in a forked child all that was inherited, and take a new lock. Memory that the child did not get must not be unmapped
    there: something else may lie in its place by now."""
    global _owner, _lock
    _lock = threading.Lock()
    for memory in _spare + [reading._memory for reading in _announced.values()]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    for inherited in (_announced, _spare, _readers):  # type: Any
        inherited.clear()
    while _open:
        _open.popitem()[1].close()
    _owner = os.getpid()


if hasattr(os, "register_at_fork"):  # no thread is in the midst of anything then, and the child has no other thread yet
    os.register_at_fork(before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_leave_to_parent)


def _hold(places: Sequence[SampleKey]) -> List[_Shard]:
    """Open the shards of these places, and keep them open."""
    held = {}  # type: Dict[str, _Shard]
    try:
        for path, num_bytes, _ in places:
            if path not in held:
                held[path] = _opened(path, num_bytes)
                held[path].users += 1
    except BaseException:
        _release(list(held.values()))
        raise
    return list(held.values())


def _release(shards: Sequence[_Shard]) -> None:
    for shard in shards:
        shard.users -= 1


def _opened(path: str, num_bytes: int) -> _Shard:
    shard = _open.get(path)
    if shard is None:
        idle = [name for name, shard in _open.items() if not shard.users] if len(_open) >= _max_open else []
        for name in idle[: len(_open) - _max_open + 1]:
            _open.pop(name).close()
        try:
            shard = _open[path] = _Shard(path, num_bytes)
        except (OSError, ValueError) as error:  # the latter of an empty file
            if getattr(error, "errno", None) == errno.ENOMEM:
                raise MemoryError(
                    "the %d bytes of %s do not fit into the addresses of this process (ulimit -v)" % (num_bytes, path)
                ) from error
            raise DatasetChanged("%s cannot be opened (%s): %s" % (path, error, _ADVICE)) from error
    _open.move_to_end(path)
    return shard


def _threads() -> ThreadPoolExecutor:
    if not _readers:
        _readers.append(ThreadPoolExecutor(READERS))
    return _readers[0]


def _at_once(function: Callable[[Any], Any], argument: Any) -> "Future[Any]":
    future = Future()  # type: Future[Any]
    try:
        future.set_result(function(argument))
    except Exception as error:
        future.set_exception(error)
    return future


def _memory(num_bytes: int) -> mmap.mmap:
    """Return memory that begins with a page. Fresh one costs a fault for each page, so what a batch leaves is taken again.

    It lies in huge pages where Python (3.8) and the kernel have them: a read past the page cache then has one piece of memory instead of
    one for each page. A forked child does not get it: a direct read into memory that a fork has shared may be lost.
    """
    while _spare:
        memory = _spare.pop()
        if len(memory) >= num_bytes:
            return memory
    try:
        memory = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError("no memory to read %d bytes of samples: %s" % (num_bytes, error)) from error
    for advice in ("MADV_DONTFORK", "MADV_HUGEPAGE"):
        if hasattr(mmap, advice):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(getattr(mmap, advice))
    return memory


def _read_extent(extent: _Extent, view: memoryview) -> memoryview:
    first, end, done = extent.start - _PAGE_HEADER, _PAGE_HEADER + extent.length, 0
    try:
        if not _DIRECT:
            value = os.pread(extent.shard.descriptor, end, first)
            view[: len(value)], done = value, len(value)
        while done < end:
            count = os.preadv(extent.shard.descriptor, [view[done:]], first + done)
            if count == 0:
                break
            done += count
    except OSError as error:
        raise extent.shard.changed(extent.key, str(error)) from error
    if done < end:
        raise extent.shard.changed(extent.key, "the file ends in the midst of it")
    return view[_PAGE_HEADER:end]


def _bring(shard: _Shard, first: int) -> None:
    """Bring a piece of a shard to the page cache, and wait until it is there. What is there already costs next to nothing."""
    try:
        with contextlib.suppress(OSError):  # who reads a value there gets the error
            for start in range(first, first + PIECE, _ADVISED):
                os.posix_fadvise(shard.descriptor, start, _ADVISED, os.POSIX_FADV_WILLNEED)
            os.pread(shard.descriptor, 1, min(first + PIECE, shard.num_bytes) - 1)
    finally:
        with _current_lock():
            _release([shard])


def _open_file(path: str) -> Tuple[int, bool]:
    """Open a file to read values of it, past the page cache where that is of no use and the file system can. Return whether it is past."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in its place is an error of size then, and no wait for a writer
    if _DIRECT and _is_large(Path(path).parent.parent):
        try:
            descriptor = os.open(path, flags | _DIRECT)
            try:
                os.preadv(descriptor, [mmap.mmap(-1, mmap.PAGESIZE)], 0)
                return descriptor, True
            except OSError:
                os.close(descriptor)
        except OSError:
            descriptor = -1  # this file system cannot
    descriptor = os.open(path, flags)
    with contextlib.suppress(OSError):  # of a pipe, whose size is refused next
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # values come one by one: the kernel shall not read what lies behind them
    return descriptor, False


@functools.lru_cache(maxsize=None)
def _is_large(dataset: Path) -> bool:
    """Return True where the shards of a dataset are larger than memory. That is asked once, before this process takes memory itself."""
    return sum(file.stat().st_size for file in dataset.glob("*/data.mdb")) > free_memory()
