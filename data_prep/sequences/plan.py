"""Look at text or token files once and decide everything: the vocabulary, the rows, which row goes to which shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from blake3 import blake3

from base.errors import DatasetError
from base.jsonfile import canonical_json, publish_json, read_json
from base.publish import publish_directory, remove_tree
from base.typed import Count, Digest, FromOne, Like, Name, read_as
from data_prep.build.listing import shards_per_split, slices
from data_prep.build.locks import held, own_part
from data_prep.build.plan_file import FILE_NAME, MAX_BYTES, samples_dir
from data_prep.build.rejections import Rejections
from data_prep.hashing import hash_file, require
from data_prep.manifest import Progress
from data_prep.sequences.ids import END_OF_BYTES, END_OF_WORDS, width_of
from data_prep.sequences.rows import ROW_BYTES, Rows, in_buckets, rows_of, share_out
from data_prep.sequences.streams import SourceFile, Stream, check_unchanged, source_files, streams_of_ids
from data_prep.sequences.text import has_text, to_streams, vocabulary_of
from data_prep.space import require_space
from data_prep.spec import DatasetSpec, spec12

SCHEMA: Final = "slipway.sequences-plan/1"
MOST_IN_VALUE: Final = 64 << 10
"""Bytes of a value in LMDB, about: large values waste little of their last page, and a reader touches only what it needs of one."""


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """A shard: rows `first` to `first` + `count` of the table `rows`, whose blake3 is `listed`."""

    split: str
    length: FromOne
    rows: Count
    first: Count
    count: Count
    listed: Digest


@dataclass(frozen=True, kw_only=True)
class SequencePlan:
    """Everything of plan.json."""

    name: Name
    spec: Annotated[Mapping[str, Any], Like(dict[str, Any])]
    spec12: str
    vocabulary: FromOne
    words: tuple[str, ...] | None
    end: Count | None
    files: tuple[SourceFile, ...]
    streams: tuple[Stream, ...]
    shards: tuple[PlannedRows, ...]
    rejected: tuple[Mapping[str, str], ...]
    rejected_count: Count

    def __post_init__(self) -> None:
        require(all(stream.width in (2, 4) for stream in self.streams), "streams: an id has 2 or 4 bytes")

    @property
    def width(self) -> int:
        """Bytes of an id in the dataset."""
        return width_of(self.vocabulary)

    @property
    def samples(self) -> int:
        """Of all shards."""
        return sum(shard.count for shard in self.shards)

    def rows_per_value(self, length: int) -> int:
        """Of a bucket."""
        return max(1, MOST_IN_VALUE // ((length + 1) * self.width))

    def shard_key(self, index: int) -> str:
        """Names what shard `index` will hold: the same key, the same bytes."""
        return blake3(canonical_json([asdict(self.shards[index]), self.vocabulary, [asdict(one) for one in self.streams]])).hexdigest()


def plan_sequences(spec: DatasetSpec, name: str, build_dir: Path, progress: Progress | None = None) -> SequencePlan:
    """Write `build_dir/plan.json`, the tables of rows and, of text, the streams; a plan of the same specification that is there already is
    taken. Raises DatasetError for a source that cannot be used, NotEnoughSpace, StorageError."""
    build_dir.mkdir(parents=True, exist_ok=True)
    with held(build_dir / "locks" / "plan"):
        if not (build_dir / FILE_NAME).exists():
            if progress is not None:
                progress(0, 0)
            try:
                return _plan(spec, name, build_dir)
            except MemoryError as error:
                raise DatasetError(f"{spec.path} cannot be planned in the memory at hand: a sequence takes {ROW_BYTES} bytes") from error
        plan = read_sequence_plan(build_dir)
    if plan.name != name or plan.spec != spec.to_json():
        raise DatasetError(f"{build_dir} belongs to another dataset ({plan.name!r}, {plan.spec12}); build {name!r} somewhere else")
    return plan


def _plan(spec: DatasetSpec, name: str, build_dir: Path) -> SequencePlan:
    rejections = Rejections()
    listed = source_files(spec, rejections)
    if not listed:
        raise rejections.refuse(f"{spec.path} holds no file with text")
    files, streams, words = _streams(spec, build_dir, listed, rejections)
    vocabulary, end = _vocabulary(spec, words)
    if spec.strict and rejections.count:
        raise rejections.refuse(f"{spec.path}, strict")
    splits = share_out(rows_of(spec, build_dir, streams, end), spec)
    groups = [(split, *group) for split, rows in splits.items() for group in in_buckets(rows, spec.lengths)]
    require_space(build_dir, sum(len(rows) * (length + 1) * width_of(vocabulary) for _, length, rows in groups), f"building {name}")
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
    check_unchanged(files)
    publish_json(build_dir / FILE_NAME, {"schema": SCHEMA, **asdict(plan)})
    return plan


def _streams(
    spec: DatasetSpec, build_dir: Path, listed: list[SourceFile], rejections: Rejections
) -> tuple[list[SourceFile], list[Stream], tuple[str, ...] | None]:
    """The files that are used, the streams, and the words of the vocabulary."""
    if spec.source == "tokens":
        return *streams_of_ids(spec, listed, rejections), None
    words = None
    if spec.vocabulary == "words":
        assert spec.words is not None
        listed, words = vocabulary_of(listed, spec.words, rejections)
        if not words:
            raise rejections.refuse(f"{spec.path} holds no words to train on")
    elif not has_text(listed):
        raise rejections.refuse(f"{spec.path} holds white space only: no text to train on")
    require_space(build_dir, 2 * sum(file.bytes for file in listed) if words is None else 0, f"the ids of {spec.path}")
    return listed, to_streams(build_dir, listed, words, lines=spec.documents == "line"), words


def _vocabulary(spec: DatasetSpec, words: Sequence[str] | None) -> tuple[int, int | None]:
    """How many ids there are, and the one that ends documents."""
    if isinstance(spec.vocabulary, int):
        return spec.vocabulary, spec.end
    return (END_OF_BYTES + 1, END_OF_BYTES) if words is None else (len(words) + 2, END_OF_WORDS)


def streams_again(plan: SequencePlan, build_dir: Path) -> None:
    """Make the streams of text anew, which a finished build has cleared away. Raises DatasetError where they came out differently."""
    with held(build_dir / "locks" / "plan"):
        if any(not (build_dir / stream.path).exists() for stream in plan.streams):
            check_unchanged(plan.files)
            made = to_streams(build_dir, plan.files, plan.words, lines=plan.spec["documents"] == "line")
            if tuple(made) != plan.streams:
                raise DatasetError(
                    f"the text of {plan.name} has changed since it was planned; build it afresh (`slipway dataset build --fresh`)"
                )


def _write_rows(build_dir: Path, groups: Sequence[tuple[str, int, Rows]], spec: DatasetSpec) -> list[PlannedRows]:
    """The tables, durable before plan.json names them, and the shards that share them."""
    try:
        shares = shards_per_split({f"{split}, {length}": len(rows) for split, length, rows in groups}, spec.shards)
    except ValueError as error:
        raise DatasetError(f"{spec.path}: {error}; set shards") from error
    target = samples_dir(build_dir)
    planned = []
    with own_part(target) as part:
        for number, (split, length, rows) in enumerate(groups):
            path = part / rows_path(build_dir, number).name
            path.write_bytes(rows.tobytes())
            listed = hash_file(path).blake3
            for start, end in slices(len(rows), shares[f"{split}, {length}"]):
                planned.append(PlannedRows(split=split, length=length, rows=number, first=start, count=end - start, listed=listed))
        if target.exists():  # tables without a plan: whoever wrote them was killed before they counted
            remove_tree(target)
        publish_directory(part, target)
    return planned


def rows_path(build_dir: Path, number: int) -> Path:
    """A table of rows."""
    return samples_dir(build_dir) / f"{number:05d}.rows"


def has_sequence_plan(build_dir: Path) -> bool:
    """Whether token sequences are built there. Raises DatasetError where there is no plan."""
    plain = read_json(build_dir / FILE_NAME, DatasetError, MAX_BYTES)
    return isinstance(plain, dict) and plain.get("schema") == SCHEMA


def read_sequence_plan(build_dir: Path) -> SequencePlan:
    """The plan in `build_dir`. Raises DatasetError when it is missing or of another version."""
    path, again = build_dir / FILE_NAME, f"remove {build_dir} and build again"
    plain = read_json(path, DatasetError, MAX_BYTES)
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise DatasetError(f"{path} is not a plan of this version of Slipway, {SCHEMA}; {again}")
    return read_as(SequencePlan, plain, path, DatasetError, again)
