"""Read and write plan.json, which says what the shards of a dataset will hold.

It is written once, last of the plan; every shard job reads it, and opens the places of the source as they were planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

from blake3 import blake3

from base.errors import DatasetError
from base.humanize import choices
from base.jsonfile import canonical_json
from base.typed import Count, Digest, Like, Name, PathText
from data_prep.build.images import Conversion
from data_prep.build.locks import held
from data_prep.build.steps import read_plan_as, samples_dir
from data_prep.sources import SOURCES, source_of
from data_prep.sources.types import Prepared, Reader, Root

SCHEMA = "slipway.plan/1"


class Options(TypedDict):
    """The options of a source from the specification."""

    samples: Count | None
    classes: Count | None
    seed: int | None
    size: tuple[Count, Count] | None
    channels: int


class PlannedSpec(TypedDict):
    """The part of the specification with which the shards and the manifest are made, stored whole."""

    source: str
    splits: dict[str, Any] | None
    per_class: Any
    quality: int
    samples: int | None
    classes: int | None
    seed: int | None
    strict: bool
    max_rejected_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class PlannedRoot:
    """A place of the source: its kind, and the size and time of the files that must not change until the end."""

    kind: str
    path: PathText
    whole: str | None
    options: Annotated[Mapping[str, Any], Like(Options)]
    files: tuple[PathText, ...]
    facts: Mapping[str, Any]
    watched: tuple[tuple[PathText, int, int], ...]  # path, bytes, mtime_ns


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """A planned shard. `stored_bytes` is the length of its samples in the source; `listed` is the blake3 of its list of samples."""

    split: str
    samples: Count
    stored_bytes: Count
    listed: Digest


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The content of plan.json."""

    name: Name
    spec: Annotated[Mapping[str, Any], Like(PlannedSpec)]
    spec12: str
    conversion: Conversion
    roots: tuple[PlannedRoot, ...]
    classes: tuple[str, ...]
    left_out_classes: tuple[str, ...]
    shards: tuple[PlannedShard, ...]
    listing_blake3: str
    rejected: tuple[Mapping[str, str], ...]
    rejected_count: Count

    @property
    def watched(self) -> Iterator[tuple[str, int, int]]:
        """Return the files of all roots that must not change."""
        return chain.from_iterable(root.watched for root in self.roots)

    @property
    def num_parts(self) -> int:
        return len(self.shards)

    def part_size(self, index: int) -> int:
        return self.shards[index].samples

    def part_bytes(self, index: int) -> int:
        return self.shards[index].stored_bytes

    def part_key(self, index: int) -> str:
        return blake3(canonical_json([self.shards[index].listed, asdict(self.conversion), self.classes])).hexdigest()


def samples_path(build_dir: Path, index: int) -> Path:
    """Return the path of a shard's list of samples."""
    return samples_dir(build_dir) / f"{index:05d}.jsonl"


def root_of(planned: PlannedRoot, build_dir: Path, number: int) -> tuple[Root, Prepared]:
    """Make the root, and what was prepared for it, as a source needs them."""
    root = Root(path=Path(planned.path), scratch=scratch_path(build_dir, number), whole=planned.whole, options=planned.options)
    return root, Prepared(files=tuple(Path(path) for path in planned.files), facts=planned.facts)


def scratch_path(build_dir: Path, number: int) -> Path:
    """Return the directory of the unpacked files of root `number`, which is kept until the dataset is finished."""
    return build_dir / "spool" / str(number)


def read_plan(build_dir: Path) -> Plan:
    """Read the plan in `build_dir`. Raises DatasetError when it is missing or of another version."""
    return read_plan_as(Plan, SCHEMA, build_dir)


def open_reader(plan_root: PlannedRoot, build_dir: Path, number: int) -> AbstractContextManager[Reader]:
    """Open a reader of root `number`. Unpacked files that were removed are unpacked again."""
    root, prepared = root_of(plan_root, build_dir, number)
    if plan_root.kind not in SOURCES:
        raise DatasetError(f"{build_dir}: the plan names a source {plan_root.kind!r}; {choices(plan_root.kind, SOURCES)}; build again")
    source = source_of(plan_root.kind)
    if any(root.scratch in path.parents and not path.exists() for path in prepared.files):
        with held(build_dir / "locks" / "plan"):
            prepared = source.prepare(root)
    return source.open_reader(root, prepared)
