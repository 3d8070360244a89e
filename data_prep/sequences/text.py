"""Text -> streams of token ids, one per split, in the build directory. Read in pieces: a line may be as long as the file.

`vocabulary: bytes`: each byte is a token, whatever its encoding. `vocabulary: words`: what stands between white space (of ASCII), and the
text must be UTF-8. After each document, a file or a line, comes one more token; lines without a word, or a byte, are no documents.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from base.errors import DatasetError
from base.publish import publish_directory, remove_tree
from data_prep.build.locks import own_part
from data_prep.build.rejections import Rejections
from data_prep.sequences.ids import END_OF_BYTES, END_OF_WORDS, UNKNOWN, type_of, width_of
from data_prep.sequences.streams import Ids, SourceFile, Stream
from data_prep.sources.files import retried
from data_prep.sources.naming import printable
from data_prep.sources.types import BadSample

PIECE_BYTES: Final = 4 << 20
MOST_WORDS: Final = 5_000_000
LONGEST_WORD: Final = 1000
SPOOL: Final = "spool"
_UNKNOWN_WORD: Final = b"<unk>"
_NEWLINE: Final = b"\n"
_WORDS: Final = {False: re.compile(rb"\S+"), True: re.compile(rb"\n|\S+")}
_SPACE: Final = re.compile(rb"\s")
_TOO_LONG: Final = re.compile(rb"\S{%d}" % (LONGEST_WORD + 1))
ToIds = Callable[[SourceFile], Iterator[Ids]]


def vocabulary_of(files: Sequence[SourceFile], most: int, rejections: Rejections) -> tuple[list[SourceFile], tuple[str, ...]]:
    """The files that are text of words, and the most frequent words of their training split, at most so many that with the end of a
    document and the unknown word there are `most`. Raises DatasetError."""
    counts: Counter[bytes] = Counter()
    kept = []
    for file in files:
        own: Counter[bytes] = Counter()
        try:
            for piece in _word_pieces(file):
                own.update(_WORDS[False].findall(piece))
                if len(counts) + len(own) > MOST_WORDS:
                    raise DatasetError(f"{printable(file.path)}: more than {MOST_WORDS:,} different words: take vocabulary: bytes")
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
    """Whether there is more than white space in the training split. Looks no further than the first of it."""
    return any(piece.strip() for file in files if file.split == "train" for piece in _pieces(file))


def to_streams(build_dir: Path, files: Sequence[SourceFile], words: Sequence[str] | None, *, lines: bool) -> list[Stream]:
    """Write `spool/<split>.ids` for each split. `words`: of `vocabulary_of`; None: bytes are the tokens. `lines`: each is a document."""
    if words is None:
        end, width = END_OF_BYTES, width_of(END_OF_BYTES + 1)
        to_ids: ToIds = partial(_byte_ids, dtype=type_of(width), lines=lines)
    else:
        end, width = END_OF_WORDS, width_of(len(words) + 2)
        table = {word.encode(): number for number, word in enumerate(words, start=UNKNOWN + 1)} | {_NEWLINE: END_OF_WORDS}
        to_ids = partial(_word_ids, table=table, dtype=type_of(width), lines=lines)
    target = build_dir / SPOOL
    streams = []
    with own_part(target) as part:
        for split in sorted({file.split for file in files}):
            count = 0
            with (part / f"{split}.ids").open("xb") as out:
                for file in files:
                    if file.split == split:
                        count += _write(out, to_ids(file), end, type_of(width))
            streams.append(Stream(split=split, path=f"{SPOOL}/{split}.ids", offset=0, width=width, ids=count))
        if target.exists():
            remove_tree(target)
        publish_directory(part, target)
    return streams


def _write(out: Any, parts: Iterator[Ids], end: int, dtype: str) -> int:
    """The ids of a file, ends of documents once each, the last one at the end. How many."""
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
    """The text in parts that end between words. Raises BadSample for what is no text of words."""
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
    """Where the last word of `text` begins, which may go on; 0 where there is no white space near its end."""
    ends = [found.end() for found in _SPACE.finditer(text, max(0, len(text) - LONGEST_WORD - 1))]
    return ends[-1] if ends else 0


def _pieces(file: SourceFile) -> Iterator[bytes]:
    """Raises DatasetError, StorageError."""
    try:
        with Path(file.path).open("rb", buffering=0) as content:
            while piece := retried(printable(file.path), lambda: content.read(PIECE_BYTES)):
                yield piece
    except OSError as error:
        raise DatasetError(f"{printable(file.path)} cannot be read: {error.strerror}") from error
