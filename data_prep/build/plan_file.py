"""Read and write plan.json, which says what the shards of a dataset will hold.

It is written once, last of the plan; every shard job reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from blake3 import blake3

from base.errors import DatasetError
from base.jsonfile import canonical_json, publish_json, read_json
from base.typed import Count, Digest, Like, Name, PathText, read_as
from data_prep.build.images import Conversion
from data_prep.sources.types import Prepared, Root

SCHEMA = "slipway.plan/1"
PLAN_FILE = "plan.json"
MAX_BYTES = 1 << 30


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
    def samples(self) -> int:
        """Count the samples of all shards, damaged ones included."""
        return sum(shard.samples for shard in self.shards)

    def shard_key(self, index: int) -> str:
        """Return a key for the content of shard `index`. The same key stands for the same bytes."""
        return blake3(canonical_json([self.shards[index].listed, asdict(self.conversion), self.classes])).hexdigest()


def samples_dir(build_dir: Path) -> Path:
    """Return the directory of the lists of samples, one file per shard."""
    return build_dir / "samples"


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


def write_plan(build_dir: Path, plan: Plan) -> None:
    """Publish plan.json."""
    publish_json(build_dir / PLAN_FILE, {"schema": SCHEMA, **asdict(plan)})


def read_plan(build_dir: Path) -> Plan:
    """Read the plan in `build_dir`. Raises DatasetError when it is missing or of another version."""
    path = build_dir / PLAN_FILE
    plain = read_json(path, DatasetError, MAX_BYTES)
    again = f"remove {build_dir} and build again"
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise DatasetError(f"{path} is not a plan of this version of Slipway, {SCHEMA}; {again}")
    return read_as(Plan, plain, path, DatasetError, again)
