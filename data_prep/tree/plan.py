"""List a tree, hash it in several jobs, and publish its manifest. The plan later shows whether the tree is still the same."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

import xxhash
from blake3 import blake3

from base import jsonfile, typed
from base.chunks import CHUNK_BYTES
from base.errors import DatasetError
from base.humanize import counted, some
from data_prep.build import steps
from data_prep.build.locks import publish_json_of, remove_all_dead_parts
from data_prep.manifest import Progress, silent
from data_prep.sources.files import Inside, retried
from data_prep.sources.naming import printable, to_raw, to_text
from data_prep.spec import DatasetSpec, spec12
from data_prep.staging.files import opened, read_into
from data_prep.tree import manifest

# Listing


_LISTING_SHOWN: Final = 5
_PACK: Final = "pack them into larger files (tar shards as webdataset reads them, parquet, HDF5), which is also how storage is read fast"


class ListedFile(NamedTuple):
    """A file of a listed tree. `at` is the target of a link below the tree, None for a file that is no link."""

    name: str
    bytes: int
    mtime_ns: int
    at: str | None


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A listed tree. `root` is without links; for a single file it is the file's directory. `left_out` holds pairs of name and reason."""

    root: Path
    files: tuple[ListedFile, ...]
    left_out: tuple[tuple[str, str], ...]


def list_tree(path: Path, progress: Progress = silent, most: int = manifest.MAX_FILES) -> Tree:
    """List the tree, or the one file, at `path`, with at most `most` files; no file is opened.

    Hidden files are listed too. What cannot be staged as it is, is refused by its name, since programs would get other data without it.
    Only entries of the storage itself and directories without files are left out, and reported. `progress(files, 0)` is called on the way.
    Raises DatasetError for what is refused, StorageError.
    """
    real = os.path.realpath(os.fsencode(path))
    try:
        status = retried(str(path), lambda: Path(os.fsdecode(real)).stat())
    except OSError as error:
        raise DatasetError(f"{path} cannot be looked at: {error.strerror}; source: files wants a directory or a file") from error
    if stat.S_ISREG(status.st_mode):
        root, name = os.path.split(real)
        walk = _Walk(root, most)
        walk.file(name, status, None)
    elif stat.S_ISDIR(status.st_mode):
        walk = _Walk(real, most)
        walk.all(progress)
    else:
        raise DatasetError(f"{path} is neither a directory nor a file, which source: files wants")
    return walk.tree(path)


class _Walk:
    def __init__(self, root: bytes, most: int) -> None:
        self.root, self.most = root, most
        self.inside = Inside(Path(os.fsdecode(root)))
        self.files: list[ListedFile] = []
        self.left_out: list[tuple[str, str]] = []
        self.wrong: list[str] = []

    def all(self, progress: Progress) -> None:
        waiting = [b""]
        while waiting:
            folder = waiting.pop()
            entries = self._entries(folder)
            if not entries and folder:
                self.left_out.append((printable(to_text(folder)) + "/", "empty directory"))
            for entry in entries:
                if self._take(folder, entry):
                    waiting.append(os.path.join(folder, entry.name))
            progress(len(self.files), 0)

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        path = os.path.join(self.root, folder)

        def listed() -> list[os.DirEntry[bytes]]:
            with os.scandir(path) as entries:
                return list(islice(entries, self.most + 2))

        try:
            found = retried(printable(to_text(path)), listed)
        except OSError as error:
            self.wrong.append(f"{printable(to_text(path))}/: cannot be listed: {error.strerror}")
            return []
        if len(found) > self.most + 1:
            self._refuse_more()
        return found

    def _take(self, folder: bytes, entry: os.DirEntry[bytes]) -> bool:
        """Note an entry, and return True for a directory to go into."""
        name = os.path.join(folder, entry.name)
        text = to_text(name)
        if manifest.is_of_storage(to_text(entry.name)):
            self.left_out.append((printable(text), "of the storage itself"))
            return False
        try:
            if entry.is_symlink():
                self._link(name)
            elif entry.is_dir(follow_symlinks=False):
                if text.count("/") < manifest.MAX_DEPTH:
                    return True
                self.wrong.append(f"{printable(text)}/: nested deeper than {manifest.MAX_DEPTH} directories")
            else:
                self.file(name, entry.stat(follow_symlinks=False), None)
        except OSError as error:
            self.wrong.append(f"{printable(text)}: {error.strerror}")
        return False

    def _link(self, name: bytes) -> None:
        resolved = self.inside.resolve(name)
        try:
            status = Path(os.fsdecode(os.path.join(self.root, name))).stat()
        except OSError as error:
            self.wrong.append(f"{printable(to_text(name))}: a link to what is not there: {error.strerror}")
            return
        if resolved is None:
            self.wrong.append(f"{printable(to_text(name))}: a link out of the tree")
        elif stat.S_ISDIR(status.st_mode):
            self.wrong.append(f"{printable(to_text(name))}: a link to a directory")
        else:
            self.file(name, status, to_text(resolved))

    def file(self, name: bytes, status: os.stat_result, at: str | None) -> None:
        text = to_text(name)
        fault = manifest.name_fault(text) or (manifest.name_fault(at) if at is not None else None)
        if fault is None and not stat.S_ISREG(status.st_mode):
            fault = "neither a file nor a directory"
        if fault is not None:
            self.wrong.append(f"{printable(text)}: {fault}")
            return
        if len(self.files) == self.most:
            self._refuse_more()
        self.files.append(ListedFile(text, status.st_size, status.st_mtime_ns, at))

    def _refuse_more(self) -> None:
        raise DatasetError(f"{os.fsdecode(self.root)} holds more than {self.most:,} files: {_PACK}")

    def tree(self, path: Path) -> Tree:
        if self.wrong:
            raise DatasetError(
                f"{path} cannot be staged as it is, because of {counted(len(self.wrong), 'entry', 'entries')}:\n"
                f"{some(sorted(self.wrong), _LISTING_SHOWN, chr(10))}\n"
                "remove or rename them, put a copy in the place of a link, or name the directory that holds what a link leads to"
            )
        if not self.files:
            raise DatasetError(f"{path} holds no file: there is nothing to stage")
        files = sorted(self.files, key=lambda file: to_raw(file.name))
        return Tree(root=Path(os.fsdecode(self.root)), files=tuple(files), left_out=tuple(sorted(self.left_out)))


PLAN_SCHEMA: Final = "slipway.tree-plan/1"
_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class TreePlan:
    """The content of plan.json."""

    name: typed.Name
    path: typed.PathText
    """The path in the study, which may hold links; `root` is without."""
    root: typed.PathText
    spec12: str
    files: tuple[ListedFile, ...]
    parts: typed.FromOne
    """Jobs that share the chunks."""
    left_out: tuple[tuple[str, str], ...]
    """Entries that are not data, as (name, reason)."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @cached_property
    def num_chunks(self) -> int:
        return sum(_chunks_of(file) for file in self.files)

    @cached_property
    def listed(self) -> str:
        """Return a digest of all that the parts hash."""
        return blake3(jsonfile.canonical_json([self.root, self.files])).hexdigest()

    @property
    def num_parts(self) -> int:
        return self.parts

    def part_key(self, index: int) -> str:
        return f"{self.listed}-{index}-{self.parts}"

    def share(self, index: int) -> Iterator[tuple[ListedFile, int, int]]:
        """Yield the chunks of part `index` as a file, its first chunk in the part, and the chunk after its last one."""
        begin, end = (self.num_chunks * number // self.parts for number in (index, index + 1))
        start = 0
        for file in self.files:
            count = _chunks_of(file)
            first, last = max(begin - start, 0), min(end - start, count)
            if first < last:
                yield file, first, last
            start += count

    def part_bytes(self, index: int) -> int:
        return sum(min(last * CHUNK_BYTES, file.bytes) - first * CHUNK_BYTES for file, first, last in self.share(index))

    part_size = part_bytes

    def changes(self, now: Tree) -> str | None:
        """Describe what has changed since the tree was listed. The result is None if nothing has."""
        names = sorted({file.name for file in {*self.files} ^ {*now.files}})
        return f"{counted(len(names), 'file is', 'files are')} new, gone or changed ({some(names, _SHOWN)})" if names else None


def _chunks_of(file: ListedFile) -> int:
    return -(-file.bytes // CHUNK_BYTES)


def _plan(spec: DatasetSpec, name: str, _build_dir: Path, progress: Progress) -> TreePlan:
    assert spec.path is not None
    path = Path(spec.path)
    tree = list_tree(path, progress)
    return TreePlan(
        name=name,
        path=str(path),
        root=os.fspath(tree.root),
        spec12=spec12(spec),
        files=tree.files,
        parts=spec.shards,
        left_out=tree.left_out,
    )


def changed_since(build_dir: Path) -> str | None:
    """Describe how a tree differs from its dataset, or return None if it is the same. Raises DatasetError, StorageError."""
    plan = KIND.read_plan(build_dir)
    found = plan.changes(list_tree(Path(plan.path)))
    return found and f"{plan.path} is not what it was when it was listed: {found}"


# Parts


PART_SCHEMA: Final = "slipway.tree-part/1"


@dataclass(frozen=True, kw_only=True)
class PartReceipt(steps.Receipt):
    """The receipt of one part, all that the job leaves: the xxh3_128 of each chunk in hex. A part without a receipt is hashed again."""

    chunks: tuple[str, ...]


def _hash(_build_dir: Path, index: int, plan: TreePlan, progress: Progress) -> PartReceipt:
    """Read and hash a part; `progress(bytes done, bytes in all)`. Raises DatasetError for a file that is not as it was listed, before,
    while and after it is read, StorageError."""
    return PartReceipt(key=plan.part_key(index), chunks=tuple(_hashes(plan, index, progress)))


def _hashes(plan: TreePlan, index: int, progress: Progress) -> list[str]:
    found: list[str] = []
    done, total = 0, plan.part_bytes(index)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for file, first, last in plan.share(index):
        for begin in range(first, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            found += retried(str(_path(plan, file)), lambda file=file, begin=begin, end=end: _read(plan, file, begin, end, buffer))  # type: ignore[misc]
            done += min(end * CHUNK_BYTES, file.bytes) - begin * CHUNK_BYTES
            progress(done, total)
    return found


_AT_ONCE: Final = 64
"""Chunks between two looks at the file's size and time."""


def _read(plan: TreePlan, file: ListedFile, first: int, last: int, buffer: memoryview) -> list[str]:
    """Return the hashes of the chunks from `first` to before `last`."""
    path, found = _path(plan, file), []
    try:
        with opened(path, os.O_RDONLY, direct=False) as descriptor:
            _check(plan, file, os.fstat(descriptor))
            for chunk in range(first, last):
                offset = chunk * CHUNK_BYTES
                num_bytes = min(CHUNK_BYTES, file.bytes - offset)
                if read_into(descriptor, buffer, num_bytes, offset) != num_bytes:
                    raise _changed(plan, file, "it was cut")
                found.append(xxhash.xxh3_128_hexdigest(buffer[:num_bytes]))
            _check(plan, file, os.fstat(descriptor))
    except PermissionError as error:
        raise DatasetError(f"{printable(str(path))} cannot be read: permission denied") from error
    except FileNotFoundError as error:
        raise _changed(plan, file, "it is gone") from error
    return found


def _path(plan: TreePlan, file: ListedFile) -> Path:
    return Path(plan.root, file.at or file.name)


def _check(plan: TreePlan, file: ListedFile, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or (status.st_size, status.st_mtime_ns) != (file.bytes, file.mtime_ns):
        raise _changed(plan, file, f"size or time differ: {status.st_size} bytes, then {file.bytes}")


def _changed(plan: TreePlan, file: ListedFile, how: str) -> DatasetError:
    return DatasetError(
        f"{printable(str(_path(plan, file)))} has changed since the tree was listed ({how}); {manifest.advice_of(plan.name)}"
    )


# Finish


def _publish(build_dir: Path, datasets_dir: Path, plan: TreePlan, receipts: Sequence[PartReceipt]) -> steps.BuiltDataset:
    """Publish the manifest and the place of the tree. Raises DatasetError where the tree is not what it was when it was listed."""
    if changes := plan.changes(list_tree(Path(plan.path))):
        raise DatasetError(f"{plan.path} has changed since it was listed: {changes}; {manifest.advice_of(plan.name)}")
    tree = manifest.TreeManifest(name=plan.name, bytes=plan.bytes, files=tuple(_files(plan, receipts)))
    place = manifest.TreeLocation(path=plan.root, links={file.name: file.at for file in plan.files if file.at is not None})
    built, is_new = steps.publish_dataset(
        datasets_dir, plan.spec12, tree, None, lambda part: publish_json_of(part / manifest.LOCATION_NAME, asdict(place))
    )
    if not is_new:  # where the same files lie at two places, the last one that was listed is read
        publish_json_of(datasets_dir / built.path / manifest.LOCATION_NAME, asdict(place))
    if not _is_written(build_dir, built):
        steps.write_dataset_file(build_dir, built)
    remove_all_dead_parts(build_dir)
    return built


def _files(plan: TreePlan, receipts: Sequence[PartReceipt]) -> Iterator[manifest.TreeFile]:
    left = chain.from_iterable(receipt.chunks for receipt in receipts)
    for file in plan.files:
        own = tuple(next(left) for _ in range(_chunks_of(file)))
        yield manifest.TreeFile(name=file.name, bytes=file.bytes, chunk_bytes=CHUNK_BYTES, chunks=own)


def _is_written(build_dir: Path, built: steps.BuiltDataset) -> bool:
    """Return True if dataset.json holds this dataset already. Its time is then only kept from being older than its receipts."""
    if not (build_dir / steps.DATASET_FILE).exists():
        return False
    steps.touch_finished(build_dir)
    return steps.read_dataset_file(build_dir) == built


KIND: Final = steps.Kind(
    plan_type=TreePlan,
    plan_schema=PLAN_SCHEMA,
    receipt_type=PartReceipt,
    receipt_schema=PART_SCHEMA,
    make_plan=_plan,
    make_part=_hash,
    is_whole=lambda _, index, plan, receipt: len(receipt.chunks) == sum(last - first for _, first, last in plan.share(index)),
    publish=_publish,
    alone_bytes=64 << 20,
    in_place=True,
)
"""Trees of files."""
