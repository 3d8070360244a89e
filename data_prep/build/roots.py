"""Open the places of a source, one for all samples and one for each split with a path of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from base.errors import DatasetError
from base.humanize import choices
from data_prep.build.locks import held
from data_prep.build.plan_file import PlannedRoot, root_of, scratch_path
from data_prep.sources import SOURCES, source_of
from data_prep.sources.types import Prepared, Reader, Root
from data_prep.spec import TRAIN, DatasetSpec


def roots_of(spec: DatasetSpec, build_dir: Path) -> list[Root]:
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


def planned(kind: str, root: Root, prepared: Prepared) -> PlannedRoot:
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
        watched=tuple(_watch(path) for path in [*given, *apart]),
    )


def check_unchanged(roots: Sequence[PlannedRoot]) -> None:
    """Check the files of the roots. Raises DatasetError naming the first one that has changed since it was listed."""
    for root in roots:
        for path, size, mtime_ns in root.watched:
            now = _watch(Path(path))
            if now != (path, size, mtime_ns):
                raise DatasetError(
                    f"{path} has changed since the source was listed: {now[1]} bytes, then {size}; "
                    "leave the source alone while it is built, and build it afresh (`slipway dataset build --fresh`)"
                )


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


def main_options(spec: DatasetSpec, prepared: Prepared) -> dict[str, Any]:
    """Return encoding, layout and channels from the specification or, where it leaves them out, from the source."""
    encoding = spec.encoding or prepared.facts["encoding"]
    channels = prepared.facts["channels"] if spec.channels is None else 3 if spec.channels == "rgb" else 1
    return {"encoding": encoding, "layout": spec.layout if encoding == "raw" else "hwc", "channels": channels}


def forbid_split_twice(found: set[str | None], roots: Sequence[Root]) -> None:
    """Refuse a split that comes both from the source itself and from a path of its own. Raises DatasetError."""
    for root in roots:
        if root.whole is not None and root.whole in found:
            raise DatasetError(f"the source at {roots[0].path} has a split {root.whole!r} of its own; remove {root.whole} from splits")
    if found - {None} and TRAIN not in found and None not in found:
        raise DatasetError(f"the source at {roots[0].path} has no {TRAIN}, only {', '.join(sorted(str(name) for name in found))}")


def _watch(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; if it was moved, build the dataset afresh") from error
    return str(path), status.st_size, status.st_mtime_ns

