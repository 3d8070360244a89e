"""Copy a local result to storage durably, hash every byte that is written, and publish the whole with one rename.

Everything runs in one thread, since it is used in forked children.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple, TypedDict

from blake3 import blake3

from base import calls, chunks, humanize, system, typed
from base.errors import DatasetError, PushError, StorageError, StorageFull
from base.jsonfile import canonical_json, json_text, read_json
from base.publish import publish, publish_directory, remove_leftover, remove_tree, sync_directory
from base.untrusted import MAX_DEPTH, Entry, directory, entries, kind_of, make_directories, open_regular
from data_prep.free_space import free_bytes
from data_prep.hashing import hash_file, new_hasher

# Files to push


MAX_FILES: Final = 10_000
"""A record lists them all."""
MAX_LOOKED_AT: Final = 10 * MAX_FILES
MAX_REFUSED: Final = 1_000
PATH_BYTES: Final = 1 << 20
"""The limit of the length of all paths together. A node that may push a part of the files may use that part of it."""
HOLES_BYTES: Final = 1 << 30
_MAX_HOLES: Final = 10_000
_OURS: Final = re.compile(
    r"((record|cell|ended|delivered-\d+(\.node-\d+)?)\.json|logs/((node|rank)-[\d-]+|sidecar-[^/]+)\.log"
    r"|(not-pushed-[0-9a-f]{12}|load-\d+)\.jsonl|checkpoint\.safetensors\.chunks\.json|of-node-\d+)(/.*)?"
)
"""Files, and what a program would have below a directory of such a name."""
_EVENTS: Final = re.compile(r"events-\d+\.jsonl")
_UNFINISHED: Final = re.compile(r"\.[^/]*\.part")

Refusal = dict[str, str]  # {"path": in ASCII, "reason"}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files to push, sorted by path, and the refused entries with their reasons."""

    files: tuple[Entry, ...]
    refused: tuple[Refusal, ...]


def list_files(root: int, first: Sequence[str] = (), *, with_ours: bool = False, most: int = MAX_FILES) -> Listing:
    """List the files to push of the directory `root`, at most `most`.

    A training program wrote the directory, so nothing in it is trusted: links, pipes, devices, files of other users, unreadable files,
    names that Slipway uses, files that are mostly holes, and files beyond the limit are refused and named, never followed or waited for.
    The names in `first` are looked for before the others, so that no number of other files displaces them; events of other ranks are
    refused then. `with_ours` allows the names that Slipway itself writes.
    """
    files: dict[str, Entry] = {}
    refused: list[Refusal] = []
    expected = frozenset(first)
    path_bytes, most_path_bytes = 0, PATH_BYTES * most // MAX_FILES
    for entry in (*_named(root, first), *_bounded(root, refused)):
        if entry.path in files or _UNFINISHED.fullmatch(entry.path):
            continue  # of the latter: what was being written when its rank ended
        reason = _refusal(entry, expected, with_ours=with_ours)
        if reason is None and not stat.S_ISDIR(entry.status.st_mode):
            path_bytes += len(json.dumps(entry.path))
            if len(files) == most or path_bytes > most_path_bytes:
                reason = f"one too many: {most} files with paths of {most_path_bytes} bytes together are pushed"
            else:
                reason = _content_refusal(root, entry.path)
            if reason is None:
                files[entry.path] = entry
        if reason is not None:
            refused.append(refusal(entry.path, reason))
    return Listing(files=tuple(sorted(files.values(), key=lambda entry: entry.path)), refused=tuple(refused))


def refusal(path: str, reason: str) -> Refusal:
    """Make the entry of a refused path, in ASCII since the path may hold any bytes."""
    return {"path": ascii(path)[1:-1], "reason": reason}


def refused_text(refused: Iterable[Refusal]) -> bytes:
    """Format the refused entries for a file, one JSON line each. Of very many only the first are listed."""
    ordered = sorted(refused, key=lambda entry: entry["path"])
    shown = ordered[:MAX_REFUSED]
    if more := humanize.and_more(len(ordered), len(shown)):
        shown.append({"path": "", "reason": more})
    return "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in shown).encode()


def _named(root: int, names: Sequence[str]) -> Iterator[Entry]:
    for name in names:
        try:
            yield Entry(name, os.stat(name, dir_fd=root, follow_symlinks=False))
        except OSError:
            continue  # it is not there, or the listing of all tells why it cannot be looked at


def _bounded(root: int, refused: list[Refusal]) -> Iterator[Entry]:
    def closed(path: str, error: OSError) -> None:
        if len(refused) < MAX_LOOKED_AT:
            refused.append(refusal(path or ".", f"{error.strerror}: it was not looked into"))

    for number, entry in enumerate(entries(root, MAX_LOOKED_AT + 1, closed)):
        if number == MAX_LOOKED_AT:
            refused.append(refusal(entry.path, f"more than {MAX_LOOKED_AT} names: from here on nothing was looked at"))
            return
        yield entry


def _refusal(entry: Entry, expected: Collection[str], *, with_ours: bool) -> str | None:
    """Return why an entry is refused by its name or status. The result is None for a file to push and for a directory to look into."""
    if stat.S_ISDIR(entry.status.st_mode):
        return f"below {MAX_DEPTH} directories: not looked into" if entry.path.count("/") >= MAX_DEPTH else None
    kind = kind_of(entry.status)
    if kind is not None:
        return kind
    if not entry.path.isprintable():
        return "its name holds control characters or is not UTF-8"
    if not with_ours and _OURS.fullmatch(entry.path):
        return "Slipway itself writes a file of this name"
    if not with_ours and expected and entry.path not in expected and _EVENTS.fullmatch(entry.path):
        return "events of a rank that is not on this node"
    return None


def _content_refusal(root: int, path: str) -> str | None:
    """Return why an open file is refused, or None. A copy would turn holes into bytes: terabytes from a file that takes no room."""
    try:
        descriptor = open_regular(root, path)
    except OSError as error:
        return str(error.strerror)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return f"of uid {status.st_uid}, not this user's"
        if status.st_size - status.st_blocks * 512 > HOLES_BYTES and _holes(descriptor, status.st_size) > HOLES_BYTES:
            return f"a file of {status.st_size} bytes with holes of more than {HOLES_BYTES}"
        return None
    finally:
        os.close(descriptor)


def _holes(descriptor: int, size: int) -> int:
    """Count the bytes of holes in the first `size` bytes. File systems that compress have few blocks, and no holes."""
    position = total = 0
    for _ in range(_MAX_HOLES):
        try:
            data = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            return total + size - position if error.errno == errno.ENXIO else 0  # no data after this; or it tells nothing of holes
        total += data - position
        position = os.lseek(descriptor, data, os.SEEK_HOLE)
        if total > HOLES_BYTES or position >= size:
            break
    return total


LOG_BYTES = 64 << 20
_READ_BYTES = 4 << 20
_SYNC_BYTES = 256 << 20
"""The limit of the bytes that are only in memory. Storage writes meanwhile, and no sync takes as long as that of a whole file."""
_OF_THE_NAME = (errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
"""The errors of storage that concern a name, not its content, and that no retry can cure."""


class PushedFile(TypedDict):
    """A file on storage; its path is relative to the directory of the attempt."""

    path: str
    bytes: typed.Count
    blake3: typed.Digest


class Naming(NamedTuple):
    """The names that a node's files get on storage.

    Those in `first` keep their path and come before all others; the others go below the directory `below`, since other nodes have files of
    the same names.
    """

    first: tuple[str, ...] = ()
    below: str | None = None

    def path(self, path: str) -> str:
        return path if self.below is None or path in self.first else f"{self.below}/{path}"


AS_THEY_ARE: Final = Naming()


def push_files(
    local_dir: Path,
    part_dir: Path,
    log_bytes: int = LOG_BYTES,
    *,
    own_dir: Path | None = None,
    naming: Naming = AS_THEY_ARE,
    most: int = MAX_FILES,
) -> list[PushedFile]:
    """Copy the files of `local_dir` into `part_dir`, beside those of other nodes, and return {"path", "bytes", "blake3"} of each.

    A program wrote `local_dir`. The files of Slipway in `own_dir` come first, and the program's files cannot have their names; without
    `own_dir`, for a result of an earlier version, they may. Files that `list_files` refuses (see there for `most`), and files of the
    program whose names storage does not take, are listed in a file `not-pushed-<hash>.jsonl`. A log longer than `log_bytes` (`*.log`, and
    all below a directory `logs`) keeps its head and its tail. Raises StorageFull where storage is full: what this call wrote is removed,
    the local copy stays. Raises StorageError where storage fails.
    """
    with contextlib.ExitStack() as open_:
        sources, refused = [], []
        for place in (own_dir, local_dir):
            if place is None:
                continue
            try:
                root = open_.enter_context(directory(place))
            except OSError as error:
                refused.append(refusal(place.name, str(error.strerror)))
                continue
            listing = list_files(root, naming.first, with_ours=place == own_dir or own_dir is None, most=most)
            refused += listing.refused
            theirs = place == local_dir
            for entry in listing.files:
                target = naming.path(entry.path) if theirs else entry.path
                sources.append(_Source(root, entry.path, target, theirs, entry.status.st_size))
        return _Push(local_dir, part_dir, log_bytes).run(sources, refused)


class _Source(NamedTuple):
    """A file below the directory `root`, and its path on storage. `theirs` is true if the program named it."""

    root: int
    path: str
    target: str
    theirs: bool
    size: int


class _Push:
    def __init__(self, local_dir: Path, part_dir: Path, log_bytes: int) -> None:
        self._local, self._part, self._log_bytes = local_dir, part_dir, log_bytes
        self._written: list[Path] = []

    def run(self, sources: Sequence[_Source], refused: list[Refusal]) -> list[PushedFile]:
        need = sum(self._limited(source.path, source.size) for source in sources)
        try:
            make_directory(self._part)
            if need > free_bytes(self._part):
                raise OSError(errno.ENOSPC, "not enough room")
            with directory(self._part) as part:
                files = list(self._copied(part, sources, refused))
                if refused:
                    text = refused_text(refused)
                    files.append(self._write(part, f"not-pushed-{blake3(text).hexdigest()[:12]}.jsonl", text))
            for place in {path.parent for path in self._written}:
                sync_directory(place)
        except OSError as error:
            if error.errno not in system.DISK_FULL:
                raise StorageError(
                    f"{self._local} cannot be pushed to {self._part}: {error.strerror}: {error.filename}; it stays on the node"
                ) from error
            for path in self._written:
                path.unlink(missing_ok=True)
            raise _full(self._local, self._part, need, str(error.strerror)) from error
        return sorted(files, key=lambda file: file["path"])

    def _copied(self, part: int, sources: Sequence[_Source], refused: list[Refusal]) -> Iterator[PushedFile]:
        """Copy the files. Files that have changed their kind since they were listed are refused, and names of the program's files that
        storage does not take."""
        for source in sources:
            try:
                descriptor = open_regular(source.root, source.path)
            except OSError as error:
                refused.append(refusal(source.path, str(error.strerror)))
                continue
            with os.fdopen(descriptor, "rb") as file:
                try:
                    target = self._opened(part, source.target)
                except OSError as error:
                    if not source.theirs or error.errno not in _OF_THE_NAME:
                        raise
                    refused.append(refusal(source.path, f"storage takes no file of this name: {error.strerror}"))
                    continue
                hashes = self._filled(target, _pieces(file, self._log_bytes if _is_log(source.path) else None))
            yield _pushed(source.target, hashes)

    def _limited(self, path: str, size: int) -> int:
        return min(size, self._log_bytes) if _is_log(path) else size

    def _write(self, part: int, path: str, content: bytes) -> PushedFile:
        return _pushed(path, self._filled(self._opened(part, path), [content]))

    def _opened(self, part: int, path: str) -> int:
        """Open a file for writing, over what a killed push left there, since nobody reads a part directory."""
        parents = path.rpartition("/")[0]
        if parents:
            make_directories(part, parents)
        descriptor = open_regular(part, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._written.append(self._part / path)
        return descriptor

    def _filled(self, descriptor: int, pieces: Iterable[bytes]) -> chunks.ChunkHasher:
        hasher, synced = new_hasher(), 0
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                hasher.update(piece)
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) or 0 :]
                if hasher.bytes - synced >= _SYNC_BYTES:
                    os.fdatasync(file.fileno())
                    synced = hasher.bytes
                calls.moved()
            os.fsync(file.fileno())
        return hasher


def _pushed(path: str, hashes: chunks.ChunkHasher) -> PushedFile:
    return {"path": path, "bytes": hashes.bytes, "blake3": hashes.hexdigest()}


def make_directory(path: Path) -> None:
    """Create `path` and its parents, each durable in its own parent. Raises OSError."""
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        try:
            place.mkdir()
        except FileExistsError:
            continue
        sync_directory(place.parent)


def _is_log(path: str) -> bool:
    return path.endswith(".log") or "logs" in path.split("/")[:-1]


def _pieces(source: BinaryIO, limit: int | None) -> Iterator[bytes]:
    """Read in pieces. Beyond `limit`, whole lines from both ends remain, and one line between them that says what is missing."""
    size = os.fstat(source.fileno()).st_size
    if limit is None or size <= limit:
        left = size  # it may grow: what could not be ended may still write
        while left and (piece := source.read(min(_READ_BYTES, left))):
            left -= len(piece)
            yield piece
        return
    head = source.read(limit // 2)
    head = head[: head.rfind(b"\n") + 1] or head
    source.seek(size - limit // 2)
    tail = source.read(limit // 2)
    tail = tail[tail.find(b"\n") + 1 :] or tail
    yield head
    yield f"[slipway: {size - len(head) - len(tail)} bytes left out here]\n".encode()
    yield tail


def _full(local_dir: Path, part_dir: Path, need: int, reason: str) -> StorageFull:
    return StorageFull(
        f"storage is full: the result {local_dir} needs {humanize.format_size(need)}, {part_dir.parent} has "
        f"{humanize.format_size(free_bytes(part_dir.parent))} free ({reason}); free room or quota"
    )


# Lists of delivered files


SCHEMA: Final = "slipway.delivered/1"
MAX_BYTES: Final = 64 << 20


class _List(TypedDict):
    schema: Literal["slipway.delivered/1"]
    files: list[PushedFile]


def list_name(attempt: str) -> str:
    """Return the name of the list of files delivered as `attempt`, such as `3` or `3.node-1`."""
    return f"delivered-{attempt}.json"


def write_list(part: Path, attempt: str, files: Iterable[PushedFile]) -> PushedFile:
    """Write the list into `part`; its own path, bytes and hash. Raises StorageError."""
    name, content = list_name(attempt), json_text({"schema": SCHEMA, "files": list(files)})
    try:
        publish(part / name, content)
    except OSError as error:
        raise StorageError(f"{part / name} cannot be written: {error.strerror}; the result stays on the node") from error
    return {"path": name, "bytes": len(content), "blake3": blake3(content).hexdigest()}


def read_list(directory: Path, attempt: str) -> list[PushedFile]:
    """Read the list of files delivered as `attempt` in `directory`, the list itself included. The node that delivered them wrote it, and
    the makers of records compare the files with it. Raises RecordError."""
    path = directory / list_name(attempt)
    found = typed.read_as(_List, read_json(path, max_bytes=MAX_BYTES), path)
    content = json_text(dict(found))
    return [*found["files"], {"path": path.name, "bytes": len(content), "blake3": blake3(content).hexdigest()}]


# Publishing


UNLISTED: Final = frozenset({"record.json"})

Content = dict[str, tuple[int, str]]  # path -> bytes, blake3


def publish_checked_files(part_dir: Path, files: Iterable[PushedFile], target_dir: Path) -> bool:
    """Check `part_dir` against `files` (the lists of all nodes' push_files together) and rename it to `target_dir`, durably.

    Returns False where the same content is there already. A record may lie beside the files and is not compared: it lists the files
    and cannot list itself. Raises PushError for anything missing, changed or not listed, and, naming both digests, where another content
    has the name; nothing is overwritten, `part_dir` stays.
    """
    wanted = _by_path(files)
    try:
        if os.path.lexists(target_dir):
            _compare(wanted, target_dir)
            remove_tree(part_dir)
            return False
        _verify(part_dir, wanted)
        if not publish_directory(part_dir, target_dir):
            _compare(wanted, target_dir)
            return False
        for left_over in target_dir.parent.glob(f".{target_dir.name}.part-*"):
            remove_leftover(left_over)
    except OSError as error:
        raise StorageError(f"{target_dir} cannot be published: {error.strerror}: {error.filename}; the result stays on the node") from error
    return True


def compare_files(directory: Path, files: Iterable[PushedFile]) -> None:
    """Compare the files in `directory` with `files`. Raises PushError unless they are the same, with nothing else beside them."""
    _verify(directory, _by_path(file for file in files if file["path"] not in UNLISTED))


def read_back(root: Path) -> Content:
    """Read the size and hash of every regular file below `root` from storage, not from memory. Raises PushError for other kinds of
    files."""
    found: Content = {}
    for folder, names, files in os.walk(root):
        for name in [*files, *(name for name in names if Path(folder, name).is_symlink())]:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _hash(path)
    return found


def digest(content: Content) -> str:
    """Return a name for the whole content, 12 hex digits."""
    return blake3(canonical_json(content)).hexdigest()[:12]


def _hash(path: Path) -> tuple[int, str]:
    try:
        found = hash_file(path, on_piece=lambda _bytes: calls.moved(), stored=True)
    except DatasetError as error:
        raise PushError(f"{error}: nobody of ours put it there") from error
    return found.bytes, found.blake3


def _by_path(files: Iterable[PushedFile]) -> Content:
    wanted: Content = {}
    for file in files:
        path, is_ = file["path"], (file["bytes"], file["blake3"])
        if wanted.setdefault(path, is_) != is_:
            raise PushError(f"two nodes pushed different files {path!r}: {wanted[path]} and {is_}; names must tell the nodes apart")
    return wanted


def _verify(part_dir: Path, wanted: Content) -> None:
    found = read_back(part_dir)
    for path in [path for path in found if Path(path).name.startswith(".") and ".part-" in path and path not in wanted]:
        (part_dir / path).unlink()  # what a kill left of a publish() inside
        del found[path]
    problems = _differences(wanted, found)
    if problems:
        raise PushError(f"{part_dir} is not what was sent: {problems}; storage lost or changed it: push again")


def _compare(wanted: Content, target_dir: Path) -> None:
    found = read_back(target_dir) if target_dir.is_dir() else {}
    problems = _differences(wanted, found)
    if problems:
        there = {path: is_ for path, is_ in found.items() if path not in UNLISTED}
        raise PushError(
            f"{target_dir} exists with another content, digest {digest(there)}, this result has {digest(wanted)}: {problems}; nothing was "
            "overwritten: look who wrote it, move one of the two away"
        )


def _differences(wanted: Content, found: Content) -> str:
    """Describe at most five differences. The text is empty if there are none."""
    problems = [f"{path} is missing" for path in sorted(wanted.keys() - found.keys())]
    problems += [f"{path} was not sent" for path in sorted(found.keys() - wanted.keys() - UNLISTED)]
    problems += [
        f"{path} has {found[path][0]} bytes, blake3 {found[path][1][:12]}, expected {wanted[path][0]}, {wanted[path][1][:12]}"
        for path in sorted(wanted.keys() & found.keys())
        if wanted[path] != found[path]
    ]
    return humanize.some(problems, 5, "; ")
