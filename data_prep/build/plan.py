"""List a source once and decide everything: classes, splits, order, which sample goes to which shard.

Nothing depends on the order in which storage lists files, on the place of the source or on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from base.errors import DatasetError
from base.humanize import format_size
from base.publish import publish_directory, remove_tree
from data_prep.build.images import Conversion
from data_prep.build.locks import held, own_part, remove_dead_parts
from data_prep.build.plan_file import PLAN_FILE, Plan, PlannedShard, read_plan, samples_dir, samples_path, write_plan
from data_prep.build.roots import check_unchanged, forbid_split_twice, main_options, planned, roots_of
from data_prep.build.selection import (
    Listing,
    Mask,
    Numbers,
    Rejections,
    Selection,
    in_order,
    line_of,
    listing_digest,
    shards_per_split,
    share_out,
    slices,
    with_label,
)
from data_prep.hashing import hash_file
from data_prep.manifest import Progress
from data_prep.sources import source_of
from data_prep.sources.types import Found, Refused
from data_prep.space import OWN_MEMORY, require_space
from data_prep.spec import DatasetSpec, spec12

_REPORT_EVERY = 1000


def plan_dataset(spec: DatasetSpec, name: str, build_dir: Path, progress: Progress | None = None) -> Plan:
    """Write `build_dir/plan.json` and the lists of samples; a plan of the same specification that is there already is taken.
    `progress(done, total)`, total 0 while it is unknown. Raises DatasetError for a source that cannot be used, NotEnoughSpace."""
    build_dir.mkdir(parents=True, exist_ok=True)
    with held(build_dir / "locks" / "plan"):
        if not (build_dir / PLAN_FILE).exists():
            try:
                return _plan(spec, name, build_dir, progress or _silent)
            except MemoryError as error:
                raise DatasetError(
                    f"{spec.path or spec.source} cannot be listed with the memory that this process may use (half of the machine's, at "
                    f"most {format_size(OWN_MEMORY)}); a sample takes some 200 bytes: look whether the source is what it should be"
                ) from error
        plan = read_plan(build_dir)
        if plan.name != name or plan.spec != spec.to_json():
            raise DatasetError(f"{build_dir} belongs to another dataset ({plan.name!r}, {plan.spec12}); build {name!r} somewhere else")
        return plan


def _silent(_done: int, _total: int) -> None:
    return None


def _plan(spec: DatasetSpec, name: str, build_dir: Path, progress: Progress) -> Plan:
    source = source_of(spec.source)
    roots = roots_of(spec, build_dir)
    prepared = [source.prepare(root) for root in roots]
    places = [planned(spec.source, root, facts) for root, facts in zip(roots, prepared, strict=True)]
    rejections = Rejections()
    listing = Listing()
    for number, root in enumerate(roots):
        _list(listing, source.scan(root, prepared[number]), number, rejections, progress)
        if number == 0:
            forbid_split_twice(set(listing.origins), roots)
    selection = Selection(listing, rejections)
    left_out = selection.bound_classes(spec.per_class.min, spec.per_class.max)
    _refuse_empty(selection, spec)
    splits = share_out(selection, spec, lambda: source.open_reader(roots[0], prepared[0]), progress)
    if spec.strict and rejections.count:
        raise rejections.refuse(f"{spec.path}, strict")
    classes = selection.classes()
    labels = selection.final_labels(classes)
    runs = _runs(selection, splits, spec)
    conversion = Conversion(**main_options(spec, prepared[0]), size=spec.size, resize=spec.resize, quality=spec.quality)
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
        listing_blake3=listing_digest(selection.keys, labels, selection.sizes, np.concatenate([run for _, run in runs]), classes),
        rejected=tuple(rejections.to_json()),
        rejected_count=rejections.count,
    )
    check_unchanged(places)
    write_plan(build_dir, plan)
    return plan


def _list(listing: Listing, entries: Iterable[Found | Refused], root: int, rejections: Rejections, progress: Progress) -> None:
    for entry in entries:
        if isinstance(entry, Refused):
            rejections.add(entry.name, entry.reason)
            continue
        listing.add(entry, line_of(entry, root))
        if len(listing) % _REPORT_EVERY == 0:
            progress(len(listing), 0)


def _refuse_empty(selection: Selection, spec: DatasetSpec) -> None:
    if selection.in_train().any():
        return
    where = f"{spec.path or spec.source} holds no usable images to train on"
    if spec.per_class.min > 1 and len(selection.listing):
        raise DatasetError(f"{where}: no class has the {spec.per_class.min} samples that per_class.min asks for")
    if selection.rejections.count:
        raise selection.rejections.refuse(where)
    raise DatasetError(f"{where}: it is empty; look at path and source ({spec.source})")


def _runs(selection: Selection, splits: Mapping[str, Mask], spec: DatasetSpec) -> list[tuple[str, Numbers]]:
    counts = {name: int(mask.sum()) for name, mask in splits.items()}
    try:
        shares = shards_per_split(counts, spec.shards)
    except ValueError as error:
        raise DatasetError(f"{spec.path or spec.source}: {error}; set shards") from error
    runs = []
    for name, mask in splits.items():
        positions = np.flatnonzero(mask)
        ordered = positions[in_order(selection.keys[positions])]
        runs += [(name, ordered[start:end]) for start, end in slices(len(ordered), shares[name])]
    return runs


def _require_room(build_dir: Path, conversion: Conversion, samples: int, stored_bytes: int) -> None:
    """Check before days of work that the dataset fits, as far as its size is known."""
    need = 0
    if conversion.encoding == "raw":
        need = samples * conversion.channels * conversion.size[0] * conversion.size[1] if conversion.size else 0
    elif conversion.size is None:
        need = stored_bytes
    require_space(build_dir, need, f"building {samples} samples")


def _write_lists(selection: Selection, labels: Numbers, runs: list[tuple[str, Numbers]], build_dir: Path) -> list[PlannedShard]:
    """Write the lists of samples durably before plan.json names them."""
    target = samples_dir(build_dir)
    remove_dead_parts(target)
    planned_shards = []
    with own_part(target) as part:
        for index, (split, run) in enumerate(runs):
            path = part / samples_path(build_dir, index).name
            with path.open("xb") as file:
                file.writelines(with_label(selection.listing.lines[position], labels[position]) for position in run.tolist())
            stored = int(selection.sizes[run].sum())
            planned_shards.append(PlannedShard(split=split, samples=len(run), stored_bytes=stored, listed=hash_file(path).blake3))
        if target.exists():  # lists without a plan: whoever wrote them was killed before they counted
            remove_tree(target)
        publish_directory(part, target)
    return planned_shards
