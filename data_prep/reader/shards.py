"""Open the shards of this process: a bounded number of LMDB environments, opened at the first use, shared by all datasets.

LMDB wants one environment per file and process, and none that was inherited by fork. A file shorter than LMDB believes kills the process
with SIGBUS at the first touch, so its size is compared with the manifest before it is opened. Values are used under one lock and copied
out: an environment may be closed to make room for another.
"""

import os
import resource
import struct
import threading
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import lmdb
import numpy as np

from .errors import DatasetChanged

_F_BIGDATA = 1
_ADVICE = "stage the dataset again; the copy was changed after it was checked"


class _Shard:
    """An open environment with its long read transaction, and a descriptor for advice to the kernel."""

    def __init__(self, path: str, num_bytes: int) -> None:
        self.descriptor = os.open(os.path.join(path, "data.mdb"), os.O_RDONLY | os.O_CLOEXEC)
        self.env: Any = None
        try:
            found = os.fstat(self.descriptor).st_size
            if found != num_bytes:
                raise DatasetChanged("%s has %d bytes, its manifest says %d: %s" % (path, found, num_bytes, _ADVICE))
            engine: Dict[str, Any] = {}
            if int(lmdb.__version__.split(".")[0]) >= 3:
                engine["lib_version"] = 0  # the 0.9 format, whatever the environment says
            self.env = lmdb.open(
                path, readonly=True, create=False, lock=False, readahead=False, map_size=num_bytes, max_spare_txns=1, **engine
            )
            self.txn = self.env.begin(buffers=True)
            self.cursor = self.txn.cursor()
            self.page_bytes = self.env.stat()["psize"]
        except BaseException:
            self.close()
            raise
        self.base: Optional[int] = None

    def close(self) -> None:
        """Unmap and close; in a forked child this touches only the child's own copies."""
        if self.env is not None:
            self.env.close()
        os.close(self.descriptor)

    def will_need(self, key: bytes) -> bool:
        """Let the kernel read the value of `key` in the background. Return False if there is none.

        Where the kernel cannot be asked, nothing is done. To ask py-lmdb for the value would touch every page of it, one fault after the
        other. Its key lies in a leaf page, and beside it the number of the page where a large value begins (lmdb 0.9, mdb.c, struct
        MDB_node: sizes, flags, key, page).
        """
        if not self.cursor.set_key(key):
            return False
        address = np.frombuffer(self.cursor.key(), np.uint8).__array_interface__["data"][0]
        if self.base is None:
            self.base = _mapping_start(address)
        if self.base:
            node = os.pread(self.descriptor, 16 + len(key), address - self.base - 8)
            low, high, flags = struct.unpack_from("<HHH", node)
            if flags & _F_BIGDATA:
                start = struct.unpack_from("<Q", node, 8 + len(key))[0] * self.page_bytes
                os.posix_fadvise(self.descriptor, start, 16 + low + (high << 16), os.POSIX_FADV_WILLNEED)
        return True


_open: "OrderedDict[str, _Shard]" = OrderedDict()
_owner = os.getpid()
_lock = threading.Lock()
_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_max_open = 4096 if _files == resource.RLIM_INFINITY else max(8, _files // 4)  # two descriptors each: half of what the process may have


def use(path: str, num_bytes: int, key: bytes, function: Callable[[memoryview], Any]) -> Any:
    """Return `function(value)` for a key; the value is valid during the call only. Raises DatasetChanged for anything not as in the
    manifest."""
    with _current_lock():
        shard = _opened(path, num_bytes)
        return function(_value(shard, path, key))


def use_many(places: Sequence[Tuple[str, int, bytes]], function: Callable[[int, List[memoryview]], Any]) -> None:
    """Call `function(first, values)` with the values of `places` (path, bytes, key), which begin with that of number `first`: once for all,
    unless they lie in more shards than may be open. The values are valid during the call only. Raises DatasetChanged as `use` does."""
    first = 0
    paths: Dict[str, None] = {}
    values = []  # type: List[memoryview]
    with _current_lock():
        for number, (path, num_bytes, key) in enumerate(places):
            if path not in paths and len(paths) == _max_open:
                function(first, values)
                first, paths, values = number, {}, []
            paths[path] = None
            values.append(_value(_opened(path, num_bytes), path, key))
        function(first, values)


def will_need(path: str, num_bytes: int, keys: Iterable[bytes]) -> None:
    """Advise the kernel to read the values of these keys. Only LMDB's inner pages are touched."""
    with _current_lock():
        shard = _opened(path, num_bytes)
        for key in keys:
            if not shard.will_need(key):
                raise _missing(path, key)


def close_all() -> None:
    """Close every environment of this process."""
    with _current_lock():
        while _open:
            _open.popitem()[1].close()


def _current_lock() -> Any:
    """Return the lock of this process. After a fork it is a new one, since another thread may have held the old, and all that was inherited
    is closed."""
    global _owner, _lock
    if os.getpid() != _owner:
        _owner = os.getpid()
        _lock = threading.Lock()
        while _open:
            _open.popitem()[1].close()
    return _lock


def _opened(path: str, num_bytes: int) -> _Shard:
    shard = _open.get(path)
    if shard is None:
        while len(_open) >= _max_open:
            _open.popitem(last=False)[1].close()
        try:
            shard = _open[path] = _Shard(path, num_bytes)
        except (OSError, lmdb.Error) as error:
            raise DatasetChanged("%s cannot be opened (%s): %s" % (path, error, _ADVICE)) from error
    _open.move_to_end(path)  # the values of the last _max_open shards stay valid
    return shard


def _value(shard: _Shard, path: str, key: bytes) -> memoryview:
    try:
        value = shard.txn.get(key)
    except lmdb.Error as error:
        raise DatasetChanged("%s, sample %s: %s: %s" % (path, key.decode(), error, _ADVICE)) from error
    if value is None:
        raise _missing(path, key)
    return value


def _missing(path: str, key: bytes) -> DatasetChanged:
    return DatasetChanged("%s has no sample %s although its manifest says so: %s" % (path, key.decode(), _ADVICE))


def _mapping_start(address: int) -> int:
    """Find where in memory byte 0 of the file lies that is mapped around `address`, 0 if the kernel does not tell."""
    try:
        with open("/proc/self/maps") as lines:
            for line in lines:
                span, _, offset = line.split()[:3]
                start, end = (int(part, 16) for part in span.split("-"))
                if start <= address < end:
                    return start - int(offset, 16)
    except OSError:
        return 0
    return 0
