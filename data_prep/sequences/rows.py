"""Rows: which ids of which stream make one sequence. Numbers only, 24 bytes per row.

A row has one id more than the model sees: its inputs are all but the last one, its targets all but the first. Of a fixed `sequence_length`
rows follow one another through a stream, whatever documents are in it, and what is left at its end is no row. With `buckets` a document is
a row of the shortest bucket that holds it; one that is longer than the longest bucket is cut into several rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from base.errors import DatasetError
from data_prep.sequences.streams import Stream, blocks_of
from data_prep.spec import TRAIN, DatasetSpec

Rows = NDArray[np.uint64]
"""(n, 3): number of the stream, number of the first id, how many ids."""
ROW_BYTES: Final = 24


def rows_of(spec: DatasetSpec, build_dir: Path, streams: Sequence[Stream], end: int | None) -> dict[str, Rows]:
    """The rows of each split that the source has, in the order of the streams. Raises DatasetError."""
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
    """Pieces of a document share one id, as windows do; a piece of one id has no target, and is none."""
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
    """Where documents end: behind the id that ends them, and at the end of the stream."""
    found = [np.flatnonzero(ids == end).astype(np.uint64) + np.uint64(first + 1) for first, ids in blocks_of(build_dir, stream)]
    ends: NDArray[np.uint64] = np.concatenate([*found, np.array([stream.ids], np.uint64)])
    return np.unique(ends)


def share_out(rows: Mapping[str, Rows], spec: DatasetSpec) -> dict[str, Rows]:
    """The splits, train first. A fraction is what train has at its end, as the field does it. Raises DatasetError for too few rows."""
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
    """(length, rows) of each bucket that has any."""
    bucket = np.searchsorted(np.array(lengths, np.uint64), rows[:, 2] - np.uint64(1))
    parts = [(length, rows[bucket == number]) for number, length in enumerate(lengths)]
    return [(length, part) for length, part in parts if len(part)]
