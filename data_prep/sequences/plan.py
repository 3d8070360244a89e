"""Look at text or token files once and decide everything: the vocabulary, the rows, which row goes to which shard."""

import codecs
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from base.errors import DatasetError
from base.humanize import some
from base.jsonfile import canonical_json
from base.typed import Count, Digest, FromOne, Name, PathText
from data_prep import free_space, hashing, manifest
from data_prep.build.locks import held, replaced
from data_prep.build.selection import Rejections, shards_per_split, slices
from data_prep.build.steps import samples_dir
from data_prep.sequences.manifest import END_OF_BYTES, END_OF_WORDS, UNKNOWN, type_of, width_of
from data_prep.sources.files import OpenFiles, check_unchanged, retried
from data_prep.sources.naming import SPLIT_NAMES, TRAIN, printable
from data_prep.sources.types import BadSample
from data_prep.spec import DatasetSpec, spec12
from data_prep.tree.plan import list_tree

# Streams of token ids


Ids = NDArray[Any]
SUFFIXES: Final = (".bin", ".npy")
SCANNED_IDS: Final = 1 << 20
_IN_NAMES: Final = re.compile(r"[._\- ]")
_SHOWN: Final = 3
_NPY_HEADER_BYTES: Final = 64 << 10
"""More than numpy takes; of a damaged length it would first read gigabytes."""
_OF_HEADERS: Final = (ValueError, TypeError, IndexError, SyntaxError, TokenError, Warning)
"""The errors of numpy at the header of a damaged .npy, which it parses as Python. They include warnings that are errors."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of the source. `name` is its path below the place in the study."""

    name: str
    path: PathText
    bytes: Count
    mtime_ns: int
    split: str

    @property
    def watched(self) -> tuple[str, int, int]:
        return self.path, self.bytes, self.mtime_ns


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of token ids in one file. `offset` counts the bytes before the first id, and `width` those of an id. `path` is relative to
    the build directory where the stream was made there from text. Files of ids are read where they lie."""

    split: str
    path: PathText
    offset: Count
    width: FromOne
    ids: Count


def source_files(spec: DatasetSpec, rejections: Rejections) -> list[SourceFile]:
    """List the files of all splits, in the order of their names. Raises DatasetError."""
    assert spec.path is not None
    files = _listed(Path(spec.path), None, rejections)
    of_names = {file.split for file in files}
    for split, path in spec.split_paths.items():
        if split in of_names - {TRAIN}:
            raise DatasetError(f"the source at {spec.path} has a split {split!r} of its own; remove {split} from splits")
        files += _listed(Path(path), split, rejections)
    return files


def _listed(path: Path, whole: str | None, rejections: Rejections) -> list[SourceFile]:
    """List the files at a path. `whole` is the split to which all of them belong."""
    tree = list_tree(path)
    shown = []
    for file in tree.files:
        hidden = any(part.startswith(".") for part in file.name.split("/"))
        reason = "hidden file" if hidden else "zero bytes" if file.bytes == 0 else None
        if reason is None:
            shown.append(file)
        else:
            rejections.add(file.name, reason)
    words = {file.name: _split_in(file.name) for file in shown}
    own = whole is None and TRAIN in words.values()
    found = []
    for file in shown:
        split = words[file.name] if own else whole or TRAIN
        if split is None:
            rejections.add(file.name, "its name tells no split, and those of others do")
            continue
        place = str(tree.root / (file.at or file.name))
        found.append(SourceFile(name=file.name, path=place, bytes=file.bytes, mtime_ns=file.mtime_ns, split=split))
    return found


def _split_in(name: str) -> str | None:
    """Find the split in a name such as `train.bin`, `ptb.valid.txt` or `test/a.txt`."""
    words = _IN_NAMES.split(name.partition("/")[0].lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def streams_of_ids(spec: DatasetSpec, files: Sequence[SourceFile], rejections: Rejections) -> tuple[list[SourceFile], list[Stream]]:
    """Select the files of ids among `files`, and make a stream of each. Raises DatasetError for a damaged file, or if there is none."""
    kept = [file for file in files if file.name.endswith(SUFFIXES)]
    for file in set(files) - set(kept):
        rejections.add(file.name, "neither .bin nor .npy")
    if not kept:
        names = some([printable(file.name) for file in files], _SHOWN)
        raise DatasetError(f"{spec.path} holds no file of token ids: source: tokens wants names that end in .bin or .npy; found {names}")
    return kept, [_npy(file) if file.name.endswith(".npy") else _bin(file, 4 if spec.id_type == "uint32" else 2) for file in kept]


def _bin(file: SourceFile, width: int) -> Stream:
    if file.bytes % width:
        raise DatasetError(
            f"{printable(file.path)} holds {file.bytes} bytes, which is no whole number of ids of {width} bytes: it was cut, or set id_type"
        )
    return Stream(split=file.split, path=file.path, offset=0, width=width, ids=file.bytes // width)


def _npy(file: SourceFile) -> Stream:
    """Make the stream of a .npy file. Arrays of more than one dimension must be in C order, and are read as they lie."""
    try:
        with Path(file.path).open("rb") as whole:
            content = io.BytesIO(whole.read(_NPY_HEADER_BYTES))
        version = np.lib.format.read_magic(content)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(content)
        offset = content.tell()
    except (OSError, *_OF_HEADERS) as error:
        raise DatasetError(f"{printable(file.path)} is no .npy file that can be read: {printable(str(error))}") from error
    if dtype not in (type_of(2), type_of(4)) or (fortran and len(shape) > 1):
        raise DatasetError(f"{printable(file.path)} holds {dtype} of shape {shape}; source: tokens wants uint16 or uint32, little-endian")
    if file.bytes != offset + int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise DatasetError(f"{printable(file.path)} holds {file.bytes} bytes, and its header promises others: it was cut or is damaged")
    return Stream(split=file.split, path=file.path, offset=offset, width=dtype.itemsize, ids=(file.bytes - offset) // dtype.itemsize)


def blocks_of(build_dir: Path, stream: Stream) -> Iterator[tuple[int, Ids]]:
    """Read a stream in parts, each with the number of its first id. Raises DatasetError, StorageError."""
    with OpenFiles([build_dir / stream.path]) as files:
        for first in range(0, stream.ids, SCANNED_IDS):
            yield first, read_ids(files, 0, stream, first, min(SCANNED_IDS, stream.ids - first))


def read_ids(files: OpenFiles, number: int, stream: Stream, first: int, count: int) -> Ids:
    """Read `count` ids, starting at the one with number `first`. `number` is that of the stream's file in `files`."""
    content = files.read_exactly(stream.offset + first * stream.width, count * stream.width, number)
    return np.frombuffer(content, type_of(stream.width))


# Rows


Rows = NDArray[np.uint64]
"""(n, 3): number of the stream, number of the first id, how many ids."""
ROW_BYTES: Final = 24


def rows_of(spec: DatasetSpec, build_dir: Path, streams: Sequence[Stream], end: int | None) -> dict[str, Rows]:
    """Cut the streams into rows for each split that the source has. Raises DatasetError.

    A row takes 24 bytes in the table, and has one id more than the model sees: its inputs are all but the last id, its targets all but the
    first. With a fixed `sequence_length`, rows follow one another through a stream across documents, and the remainder at its end is no
    row. With `buckets` a document is a row of the shortest bucket that holds it; one that is longer than the longest bucket is cut into
    several rows.
    """
    found: dict[str, list[Rows]] = {}
    for number, stream in enumerate(streams):
        if spec.buckets is None:
            assert spec.sequence_length is not None
            made = _windows(number, stream.ids, spec.sequence_length)
        else:
            assert end is not None
            made = _documents(number, _ends(build_dir, stream, end), spec.buckets[-1])
        found.setdefault(stream.split, []).append(made)
    return {split: np.concatenate(parts) for split, parts in found.items()}


def _windows(number: int, ids: int, length: int) -> Rows:
    starts = np.arange(max(0, (ids - 1) // length), dtype=np.uint64) * np.uint64(length)
    return _table(number, starts, np.full(len(starts), length + 1, np.uint64))


def _documents(number: int, ends: NDArray[np.uint64], longest: int) -> Rows:
    """Cut documents into rows. Pieces of a document share one id, as windows do. A piece of one id has no target and is no row."""
    starts = np.concatenate([np.zeros(1, np.uint64), ends])[:-1]
    lengths = ends - starts
    pieces = (np.maximum(lengths, 2) - np.uint64(2)) // np.uint64(longest) + np.uint64(1)
    nth = np.arange(int(pieces.sum()), dtype=np.uint64) - np.repeat(np.cumsum(pieces) - pieces, pieces.astype(np.int64))
    skipped = nth * np.uint64(longest)
    begun = np.repeat(starts, pieces.astype(np.int64)) + skipped
    left = np.repeat(lengths, pieces.astype(np.int64)) - skipped
    kept = left >= 2
    return _table(number, begun[kept], np.minimum(left, np.uint64(longest + 1))[kept])


def _table(number: int, starts: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> Rows:
    return np.stack([np.full(len(starts), number, np.uint64), starts, lengths], axis=1)


def _ends(build_dir: Path, stream: Stream, end: int) -> NDArray[np.uint64]:
    """Find the ends of documents: behind each id that ends one, and at the end of the stream."""
    found = [np.flatnonzero(ids == end).astype(np.uint64) + np.uint64(first + 1) for first, ids in blocks_of(build_dir, stream)]
    ends: NDArray[np.uint64] = np.concatenate([*found, np.array([stream.ids], np.uint64)])
    return np.unique(ends)


def share_out(rows: Mapping[str, Rows], spec: DatasetSpec) -> dict[str, Rows]:
    """Divide the rows into splits, train first. A fraction is taken from the end of train, as the field does it. Raises DatasetError for
    too few rows."""
    left = rows.get(TRAIN, np.empty((0, 3), np.uint64))
    found = {split: part for split, part in rows.items() if split != TRAIN}
    of_source = bool(set(found) - set(spec.split_paths))
    asked = {name: part for name, part in spec.fractions(source_has_splits=of_source).items() if name not in found}
    in_all = len(left)
    for name in sorted(asked):
        count = max(1, round(in_all * asked[name]))
        left, found[name] = left[: max(0, len(left) - count)], left[max(0, len(left) - count) :]
    empty = [name for name, part in {TRAIN: left, **found}.items() if len(part) == 0]
    if empty:
        raise DatasetError(
            f"{spec.path}: split {empty[0]} would have no sequence of {spec.row_words} (all that is train's: {in_all}); "
            "take a shorter sequence_length, more text, or other splits (splits: {} is train alone)"
        )
    return {TRAIN: left, **{name: found[name] for name in sorted(found)}}


def in_buckets(rows: Rows, lengths: Sequence[int]) -> list[tuple[int, Rows]]:
    """Group the rows by bucket, as (length, rows), without empty buckets."""
    bucket = np.searchsorted(np.array(lengths, np.uint64), rows[:, 2] - np.uint64(1))
    parts = [(length, rows[bucket == number]) for number, length in enumerate(lengths)]
    return [(length, part) for length, part in parts if len(part)]


# Text


PIECE_BYTES: Final = 4 << 20
MAX_WORDS: Final = 5_000_000
LONGEST_WORD: Final = 1000
SPOOL: Final = "spool"
_UNKNOWN_WORD: Final = b"<unk>"
_NEWLINE: Final = b"\n"
_WORDS: Final = {False: re.compile(rb"\S+"), True: re.compile(rb"\n|\S+")}
_SPACE: Final = re.compile(rb"\s")
_TOO_LONG: Final = re.compile(rb"\S{%d}" % (LONGEST_WORD + 1))
ToIds = Callable[[SourceFile], Iterator[Ids]]


def vocabulary_of(files: Sequence[SourceFile], most: int, rejections: Rejections) -> tuple[list[SourceFile], tuple[str, ...]]:
    """Select the files that are text of words, and the most frequent words of their training split. With the end of a document and the
    unknown word there are at most `most`. Raises DatasetError."""
    counts: Counter[bytes] = Counter()
    kept = []
    for file in files:
        own: Counter[bytes] = Counter()
        try:
            for piece in _word_pieces(file):
                own.update(_WORDS[False].findall(piece))
                if len(counts) + len(own) > MAX_WORDS:
                    raise DatasetError(f"{printable(file.path)}: more than {MAX_WORDS:,} different words: take vocabulary: bytes")
        except BadSample as error:
            rejections.add(file.name, str(error))
            continue
        kept.append(file)
        if file.split == "train":
            counts += own
    counts.pop(_UNKNOWN_WORD, None)
    found = sorted(counts, key=lambda word: (-counts[word], word))[: most - 2]
    return kept, tuple(word.decode() for word in found)


def has_text(files: Sequence[SourceFile]) -> bool:
    """Return True if the training split holds more than white space. Only as much of it as needed is read."""
    return any(piece.strip() for file in files if file.split == "train" for piece in _pieces(file))


def to_streams(build_dir: Path, files: Sequence[SourceFile], words: Sequence[str] | None, *, lines: bool) -> list[Stream]:
    """Turn text into the streams `spool/<split>.ids`, one for each split.

    With `words`, those of `vocabulary_of`, the tokens are what stands between white space (of ASCII), and the text must be UTF-8; with None
    each byte is a token, whatever its encoding. After each document, a file or with `lines` a line, comes one more token. Lines without a
    word, or without a byte, are no documents.
    """
    if words is None:
        end, width = END_OF_BYTES, width_of(END_OF_BYTES + 1)
        to_ids: ToIds = partial(_byte_ids, dtype=type_of(width), lines=lines)
    else:
        end, width = END_OF_WORDS, width_of(len(words) + 2)
        table = {word.encode(): number for number, word in enumerate(words, start=UNKNOWN + 1)} | {_NEWLINE: END_OF_WORDS}
        to_ids = partial(_word_ids, table=table, dtype=type_of(width), lines=lines)
    streams = []
    with replaced(build_dir / SPOOL) as part:
        for split in sorted({file.split for file in files}):
            count = 0
            with (part / f"{split}.ids").open("xb") as out:
                for file in files:
                    if file.split == split:
                        count += _write(out, to_ids(file), end, type_of(width))
            streams.append(Stream(split=split, path=f"{SPOOL}/{split}.ids", offset=0, width=width, ids=count))
    return streams


def _write(out: Any, parts: Iterator[Ids], end: int, dtype: str) -> int:
    """Write the documents, each with one id at its end, the last one too, and return the number of ids."""
    count, last = 0, end
    for ids in parts:
        before = np.concatenate([np.array([last], dtype), ids[:-1]])
        kept = ids[(ids != end) | (before != end)]
        if len(ids):
            last = int(ids[-1])
        out.write(kept.tobytes())
        count += len(kept)
    if last != end:
        out.write(np.array([end], dtype).tobytes())
        count += 1
    return count


def _byte_ids(file: SourceFile, *, dtype: str, lines: bool) -> Iterator[Ids]:
    for piece in _pieces(file):
        ids = np.frombuffer(piece, np.uint8).astype(dtype)
        if lines:
            ids[ids == ord(_NEWLINE)] = END_OF_BYTES
        yield ids


def _word_ids(file: SourceFile, *, table: dict[bytes, int], dtype: str, lines: bool) -> Iterator[Ids]:
    for piece in _word_pieces(file):
        yield np.array([table.get(word, UNKNOWN) for word in _WORDS[lines].findall(piece)], dtype)


def _word_pieces(file: SourceFile) -> Iterator[bytes]:
    """Read the text in parts that end between words. Raises BadSample for a file that is no text of words."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest, done = b"", 0
    for piece in chain(_pieces(file), (None,)):
        try:
            decoder.decode(piece or b"", final=piece is None)
        except UnicodeDecodeError as error:
            raise BadSample(f"not UTF-8: {error.reason} near byte {done + error.start}; vocabulary: bytes takes any bytes") from error
        done += len(piece or b"")
        text = rest + (piece or b" ")
        if done == len(piece or b""):  # the beginning of the file
            text = text.removeprefix(codecs.BOM_UTF8)
        cut = len(text) if piece is None else _last_space(text)
        rest = text[cut:]
        if _TOO_LONG.search(text):
            raise BadSample(f"a word of more than {LONGEST_WORD} bytes: no text of words; vocabulary: bytes takes any bytes")
        yield text[:cut]


def _last_space(text: bytes) -> int:
    """Return where the last, perhaps unfinished word of `text` begins. The result is 0 where no white space is near its end."""
    ends = [found.end() for found in _SPACE.finditer(text, max(0, len(text) - LONGEST_WORD - 1))]
    return ends[-1] if ends else 0


def _pieces(file: SourceFile) -> Iterator[bytes]:
    """Read a file in pieces, since a line may be as long as the file. Raises DatasetError, StorageError."""
    try:
        with Path(file.path).open("rb", buffering=0) as content:
            while piece := retried(printable(file.path), lambda: content.read(PIECE_BYTES)):
                yield piece
    except OSError as error:
        raise DatasetError(f"{printable(file.path)} cannot be read: {error.strerror}") from error


SCHEMA: Final = "slipway.sequences-plan/1"
MAX_IN_VALUE: Final = 64 << 10
"""The approximate length of a value in LMDB. Large values waste little of their last page, and a reader touches only the pages that it
needs."""


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """A planned shard: rows `first` to `first` + `count` of the table `rows`, whose blake3 is `listed`."""

    split: str
    length: FromOne
    rows: Count
    first: Count
    count: Count
    listed: Digest


@dataclass(frozen=True, kw_only=True)
class SequencePlan:
    """The content of plan.json."""

    name: Name
    spec: Mapping[str, Any]
    spec12: str
    vocabulary: FromOne
    words: tuple[str, ...] | None
    end: Count | None
    files: tuple[SourceFile, ...]
    streams: tuple[Stream, ...]
    shards: tuple[PlannedRows, ...]
    rejected: tuple[Mapping[str, str], ...]
    rejected_count: Count

    @property
    def width(self) -> int:
        """Return the bytes of an id in the dataset."""
        return width_of(self.vocabulary)

    @property
    def num_parts(self) -> int:
        return len(self.shards)

    def part_size(self, index: int) -> int:
        return self.shards[index].count

    def part_bytes(self, index: int) -> int:
        return self.shards[index].count * (self.shards[index].length + 1) * self.width

    def rows_per_value(self, length: int) -> int:
        return max(1, MAX_IN_VALUE // ((length + 1) * self.width))

    def part_key(self, index: int) -> str:
        return blake3(canonical_json([asdict(self.shards[index]), self.vocabulary, [asdict(one) for one in self.streams]])).hexdigest()


def make_plan(spec: DatasetSpec, name: str, build_dir: Path, _progress: manifest.Progress) -> SequencePlan:
    """Decide everything, and write the tables of rows and, of text, the streams. Raises DatasetError for a source that cannot be used,
    NotEnoughSpace, StorageError."""
    rejections = Rejections()
    listed = source_files(spec, rejections)
    if not listed:
        raise rejections.error(f"{spec.path} holds no file with text")
    files, streams, words = _streams(spec, build_dir, listed, rejections)
    vocabulary, end = _vocabulary(spec, words)
    if spec.strict and rejections.count:
        raise rejections.error(f"{spec.path}, strict")
    splits = share_out(rows_of(spec, build_dir, streams, end), spec)
    groups = [(split, *group) for split, rows in splits.items() for group in in_buckets(rows, spec.lengths)]
    free_space.require_space(
        build_dir, sum(len(rows) * (length + 1) * width_of(vocabulary) for _, length, rows in groups), f"building {name}"
    )
    shards = _write_rows(build_dir, groups, spec)
    plan = SequencePlan(
        name=name,
        spec=spec.to_json(),
        spec12=spec12(spec),
        vocabulary=vocabulary,
        words=words,
        end=end,
        files=tuple(files),
        streams=tuple(streams),
        shards=tuple(shards),
        rejected=tuple(rejections.to_json()),
        rejected_count=rejections.count,
    )
    check_unchanged(file.watched for file in files)
    return plan


def _streams(
    spec: DatasetSpec, build_dir: Path, listed: list[SourceFile], rejections: Rejections
) -> tuple[list[SourceFile], list[Stream], tuple[str, ...] | None]:
    if spec.source == "tokens":
        return *streams_of_ids(spec, listed, rejections), None
    words = None
    if spec.vocabulary == "words":
        assert spec.words is not None
        listed, words = vocabulary_of(listed, spec.words, rejections)
        if not words:
            raise rejections.error(f"{spec.path} holds no words to train on")
    elif not has_text(listed):
        raise rejections.error(f"{spec.path} holds white space only: no text to train on")
    free_space.require_space(build_dir, 2 * sum(file.bytes for file in listed) if words is None else 0, f"the ids of {spec.path}")
    return listed, to_streams(build_dir, listed, words, lines=spec.documents == "line"), words


def _vocabulary(spec: DatasetSpec, words: Sequence[str] | None) -> tuple[int, int | None]:
    """Return the size of the vocabulary, and the id that ends documents."""
    if isinstance(spec.vocabulary, int):
        return spec.vocabulary, spec.end
    return (END_OF_BYTES + 1, END_OF_BYTES) if words is None else (len(words) + 2, END_OF_WORDS)


def streams_again(plan: SequencePlan, build_dir: Path) -> None:
    """Make the streams of text anew, which a finished build has cleared away. Raises DatasetError where they came out differently."""
    with held(build_dir / "locks" / "plan"):
        if any(not (build_dir / stream.path).exists() for stream in plan.streams):
            check_unchanged(file.watched for file in plan.files)
            made = to_streams(build_dir, plan.files, plan.words, lines=plan.spec["documents"] == "line")
            if tuple(made) != plan.streams:
                raise DatasetError(
                    f"the text of {plan.name} has changed since it was planned; build it afresh (`slipway dataset build --fresh`)"
                )


def _write_rows(build_dir: Path, groups: Sequence[tuple[str, int, Rows]], spec: DatasetSpec) -> list[PlannedRows]:
    """Write the tables durably before plan.json names them, and divide them into shards."""
    try:
        shares = shards_per_split({f"{split}, {length}": len(rows) for split, length, rows in groups}, spec.shards)
    except ValueError as error:
        raise DatasetError(f"{spec.path}: {error}; set shards") from error
    planned = []
    with replaced(samples_dir(build_dir)) as part:
        for number, (split, length, rows) in enumerate(groups):
            path = part / rows_path(build_dir, number).name
            path.write_bytes(rows.tobytes())
            listed = hashing.hash_file(path).blake3
            for start, end in slices(len(rows), shares[f"{split}, {length}"]):
                planned.append(PlannedRows(split=split, length=length, rows=number, first=start, count=end - start, listed=listed))
    return planned


def rows_path(build_dir: Path, number: int) -> Path:
    """Return the path of a table of rows."""
    return samples_dir(build_dir) / f"{number:05d}.rows"
