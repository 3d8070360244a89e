"""List a source once and decide everything: classes, splits, order, which sample goes to which shard.

Nothing depends on the order in which storage lists files, on the place of the source or on the number of processes. What is decided is in
plan.json, which every shard job reads; it opens the places of the source as they were planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from base.errors import DatasetError
from base.humanize import choices
from base.jsonfile import canonical_json
from base.typed import Count, Digest, Name, PathText
from data_prep.build import images, locks
from data_prep.build import selection as select
from data_prep.build.steps import samples_dir
from data_prep.free_space import require_space
from data_prep.hashing import hash_file
from data_prep.manifest import Progress
from data_prep.sources import SOURCES, source_of
from data_prep.sources.files import check_unchanged, watched
from data_prep.sources.naming import TRAIN
from data_prep.sources.types import ListedSample, Prepared, Reader, Refused, Root

if TYPE_CHECKING:
    from data_prep.spec import DatasetSpec

# The content of plan.json


SCHEMA = "slipway.plan/2"


@dataclass(frozen=True, kw_only=True)
class PlannedRoot:
    """A place of the source: its kind, and the size and time of the files that must not change until the end."""

    kind: str
    path: PathText
    whole: str | None
    options: Mapping[str, Any]
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
    """The content of plan.json. Mean and deviation are made of `measured` samples of train."""

    name: Name
    spec: Mapping[str, Any]
    spec12: str
    conversion: images.Conversion
    roots: tuple[PlannedRoot, ...]
    classes: tuple[str, ...]
    left_out_classes: tuple[str, ...]
    shards: tuple[PlannedShard, ...]
    measured: Count
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
    return samples_dir(build_dir) / f"{index:05d}.msgpack"


def root_of(planned: PlannedRoot, build_dir: Path, number: int) -> tuple[Root, Prepared]:
    """Make the root, and what was prepared for it, as a source needs them."""
    root = Root(path=Path(planned.path), scratch=scratch_path(build_dir, number), whole=planned.whole, options=planned.options)
    return root, Prepared(files=tuple(Path(path) for path in planned.files), facts=planned.facts)


def scratch_path(build_dir: Path, number: int) -> Path:
    """Return the directory of the unpacked files of root `number`, which is kept until the dataset is finished."""
    return build_dir / "spool" / str(number)


def open_reader(plan_root: PlannedRoot, build_dir: Path, number: int) -> AbstractContextManager[Reader]:
    """Open a reader of root `number`. Unpacked files that were removed are unpacked again."""
    root, prepared = root_of(plan_root, build_dir, number)
    if plan_root.kind not in SOURCES:
        raise DatasetError(f"{build_dir}: the plan names a source {plan_root.kind!r}; {choices(plan_root.kind, SOURCES)}; build again")
    source = source_of(plan_root.kind)
    if any(root.scratch in path.parents and not path.exists() for path in prepared.files):
        with locks.held(build_dir / "locks" / "plan"):
            prepared = source.prepare(root)
    return source.open_reader(root, prepared)


_REPORT_EVERY = 1000
Runs = list[tuple[str, select.Numbers]]


def make_plan(spec: DatasetSpec, name: str, build_dir: Path, progress: Progress) -> Plan:
    """List the source, decide everything and write the lists of samples. Raises DatasetError for a source that cannot be used,
    NotEnoughSpace."""
    from data_prep.spec import spec12  # shards need none of its models

    source = source_of(spec.source)
    roots = _roots_of(spec, build_dir)
    prepared = [source.prepare(root) for root in roots]
    places = [_planned(spec.source, root, facts) for root, facts in zip(roots, prepared, strict=True)]
    rejections = select.Rejections()
    listing = select.Listing()
    for number, root in enumerate(roots):
        _list(listing, source.scan(root, prepared[number]), number, rejections, progress)
        if number == 0:
            _forbid_split_twice(set(listing.origins), roots)
    selection = select.Selection(listing, rejections)
    left_out = selection.bound_classes(spec.per_class.min, spec.per_class.max)
    _refuse_empty(selection, spec)
    splits = select.share_out(selection, spec, lambda: source.open_reader(roots[0], prepared[0]), progress)
    if spec.strict and rejections.count:
        raise rejections.error(f"{spec.path}, strict")
    classes = selection.classes()
    labels = selection.final_labels(classes)
    runs = _runs(selection, splits, spec)
    options = _main_options(spec, prepared[0])
    check = spec.check if options["encoding"] == "jpeg" and spec.check else "decode"
    conversion = images.Conversion(**options, size=spec.size, resize=spec.resize, quality=spec.quality, check=check)
    in_train, train_bytes = int(splits[TRAIN].sum()), int(selection.sizes[splits[TRAIN]].sum())
    _require_room(build_dir, conversion, sum(len(run) for _, run in runs), int(selection.sizes[selection.kept].sum()))
    plan = Plan(
        name=name,
        spec=spec.to_json(),
        spec12=spec12(spec),
        conversion=conversion,
        roots=tuple(places),
        classes=tuple(classes),
        left_out_classes=tuple(left_out),
        shards=tuple(_write_lists(selection, labels, runs, build_dir)),
        measured=in_train if spec.statistics == "all" else select.measured_samples(in_train, train_bytes),
        listing_blake3=select.listing_digest(selection.keys, labels, selection.sizes, np.concatenate([run for _, run in runs]), classes),
        rejected=tuple(rejections.to_json()),
        rejected_count=rejections.count,
    )
    check_unchanged(plan.watched)
    return plan


def _roots_of(spec: DatasetSpec, build_dir: Path) -> list[Root]:
    """List the main root first, then those of the splits by name."""
    options = {
        "samples": spec.samples,
        "classes": spec.classes,
        "seed": spec.seed,
        "size": spec.size,
        "channels": 3 if spec.channels == "rgb" else 1,
    }
    main = Root(path=Path(spec.path or "/"), scratch=scratch_path(build_dir, 0), options=options)
    return [
        main,
        *(
            Root(path=Path(path), scratch=scratch_path(build_dir, number), whole=name, options=options)
            for number, (name, path) in enumerate(spec.split_paths.items(), start=1)
        ),
    ]


def _planned(kind: str, root: Root, prepared: Prepared) -> PlannedRoot:
    """Make the entry of a root in plan.json, with the files that must not change."""
    given = [root.path] if root.path.is_file() else []
    apart = [path for path in prepared.files if root.scratch not in path.parents and path not in given]
    return PlannedRoot(
        kind=kind,
        path=str(root.path),
        whole=root.whole,
        options=dict(root.options),
        files=tuple(str(path) for path in prepared.files),
        facts=dict(prepared.facts),
        watched=tuple(watched(path) for path in [*given, *apart]),
    )


def _main_options(spec: DatasetSpec, prepared: Prepared) -> dict[str, Any]:
    """Return encoding, layout and channels from the specification or, where it leaves them out, from the source."""
    encoding = spec.encoding or prepared.facts["encoding"]
    channels = prepared.facts["channels"] if spec.channels is None else 3 if spec.channels == "rgb" else 1
    return {"encoding": encoding, "layout": spec.layout if encoding == "raw" else "hwc", "channels": channels}


def _forbid_split_twice(found: set[str | None], roots: Sequence[Root]) -> None:
    """Refuse a split that comes both from the source itself and from a path of its own. Raises DatasetError."""
    for root in roots:
        if root.whole is not None and root.whole in found:
            raise DatasetError(f"the source at {roots[0].path} has a split {root.whole!r} of its own; remove {root.whole} from splits")
    if found - {None} and TRAIN not in found and None not in found:
        raise DatasetError(f"the source at {roots[0].path} has no {TRAIN}, only {', '.join(sorted(str(name) for name in found))}")


def _list(
    listing: select.Listing, entries: Iterable[ListedSample | Refused], root: int, refused: select.Rejections, progress: Progress
) -> None:
    for entry in entries:
        if isinstance(entry, Refused):
            refused.add(entry.name, entry.reason)
            continue
        listing.add(entry, root)
        if len(listing) % _REPORT_EVERY == 0:
            progress(len(listing), 0)


def _refuse_empty(selection: select.Selection, spec: DatasetSpec) -> None:
    if selection.in_train().any():
        return
    where = f"{spec.path or spec.source} holds no usable images to train on"
    if spec.per_class.min > 1 and len(selection.listing):
        raise DatasetError(f"{where}: no class has the {spec.per_class.min} samples that per_class.min asks for")
    if selection.rejections.count:
        raise selection.rejections.error(where)
    raise DatasetError(f"{where}: it is empty; look at path and source ({spec.source})")


def _runs(selection: select.Selection, splits: Mapping[str, select.Mask], spec: DatasetSpec) -> Runs:
    counts = {name: int(mask.sum()) for name, mask in splits.items()}
    try:
        shares = select.shards_per_split(counts, spec.shards)
    except ValueError as error:
        raise DatasetError(f"{spec.path or spec.source}: {error}; set shards") from error
    runs = []
    for name, mask in splits.items():
        positions = np.flatnonzero(mask)
        ordered = positions[select.in_order(selection.keys[positions])]
        runs += [(name, ordered[start:end]) for start, end in select.slices(len(ordered), shares[name])]
    return runs


def _require_room(build_dir: Path, conversion: images.Conversion, samples: int, stored_bytes: int) -> None:
    """Check before days of work that the dataset fits, as far as its size is known."""
    need = 0
    if conversion.encoding == "raw":
        need = samples * conversion.channels * conversion.size[0] * conversion.size[1] if conversion.size else 0
    elif conversion.size is None:
        need = stored_bytes
    require_space(build_dir, need, f"building {samples} samples")


def _write_lists(selection: select.Selection, labels: select.Numbers, runs: Runs, build_dir: Path) -> list[PlannedShard]:
    """Write the lists of samples durably before plan.json names them."""
    planned_shards = []
    with locks.replaced(samples_dir(build_dir)) as part:
        for index, (split, run) in enumerate(runs):
            path = part / samples_path(build_dir, index).name
            with path.open("xb") as file:
                select.write_samples(file, [selection.listing.records[position] for position in run.tolist()], labels[run].tolist())
            stored = int(selection.sizes[run].sum())
            planned_shards.append(PlannedShard(split=split, samples=len(run), stored_bytes=stored, listed=hash_file(path).blake3))
    return planned_shards
