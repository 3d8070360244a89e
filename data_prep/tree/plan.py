"""List a tree once, and decide which chunks each job hashes. The plan also tells later whether the tree is still what it was."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from base.chunks import CHUNK_BYTES
from base.errors import DatasetError
from base.jsonfile import canonical_json, read_json
from base.typed import FromOne, Name, PathText, read_as
from base.units import counted, some
from data_prep.build.locks import held, publish_json_of
from data_prep.build.plan_file import FILE_NAME
from data_prep.hashing import require
from data_prep.manifest import Progress
from data_prep.sources.naming import to_raw
from data_prep.spec import DatasetSpec, spec12
from data_prep.tree.listing import ListedFile, Tree, list_tree
from data_prep.tree.names import name_fault

SCHEMA: Final = "slipway.tree-plan/1"
MAX_BYTES: Final = 256 << 20
"""Of a plan and of a receipt."""
_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class TreePlan:
    """The content of plan.json."""

    name: Name
    path: PathText
    """As the study says it: it may be a link, `root` is without."""
    root: PathText
    spec12: str
    files: tuple[ListedFile, ...]
    parts: FromOne
    """Jobs that share the chunks."""

    def __post_init__(self) -> None:
        names = [file.name for file in self.files]
        fault = next(
            (fault for file in self.files for name in (file.name, file.at) if name is not None and (fault := name_fault(name))), None
        )
        require(fault is None, f"files: {fault}")
        require(names == sorted(set(names), key=to_raw), "files: they are not in the order of their names, or one is listed twice")
        require(all(file.bytes >= 0 for file in self.files), "files: one has less than no bytes")

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    @cached_property
    def num_chunks(self) -> int:
        """Of all files."""
        return sum(_chunks_of(file) for file in self.files)

    @cached_property
    def listed(self) -> str:
        """Names what the parts hash."""
        return blake3(canonical_json([self.root, self.files])).hexdigest()

    def key(self, index: int) -> str:
        """Names what part `index` hashes: the same key, the same chunks."""
        return f"{self.listed}-{index}-{self.parts}"

    def share(self, index: int) -> Iterator[tuple[ListedFile, int, int]]:
        """The chunks of part `index`: of each file that it reads the first, and the one after the last."""
        begin, end = (self.num_chunks * number // self.parts for number in (index, index + 1))
        start = 0
        for file in self.files:
            count = _chunks_of(file)
            first, last = max(begin - start, 0), min(end - start, count)
            if first < last:
                yield file, first, last
            start += count

    def share_bytes(self, index: int) -> int:
        """How much part `index` reads."""
        return sum(min(last * CHUNK_BYTES, file.bytes) - first * CHUNK_BYTES for file, first, last in self.share(index))

    def changes(self, now: Tree) -> str | None:
        """What is not as it was when it was listed; None: nothing."""
        before, after = ({file.name: file for file in files} for files in (self.files, now.files))
        new, gone = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
        other = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
        said = [
            f"{counted(len(names), 'file is', 'files are')} {how} ({some(names, _SHOWN)})"
            for names, how in ((new, "new"), (gone, "gone"), (other, "changed"))
            if names
        ]
        return ", ".join(said) or None


def _chunks_of(file: ListedFile) -> int:
    return -(-file.bytes // CHUNK_BYTES)


def plan_tree(spec: DatasetSpec, name: str, build_dir: Path, progress: Progress | None = None) -> TreePlan:
    """Write `build_dir/plan.json`; one of the same specification that is there already is taken. Raises DatasetError, StorageError."""
    build_dir.mkdir(parents=True, exist_ok=True)
    assert spec.path is not None
    with held(build_dir / "locks" / "plan"):
        if not (build_dir / FILE_NAME).exists():
            tree = list_tree(Path(spec.path), progress)
            plan = TreePlan(name=name, path=spec.path, root=os.fspath(tree.root), spec12=spec12(spec), files=tree.files, parts=spec.shards)
            publish_json_of(build_dir / FILE_NAME, {"schema": SCHEMA, **asdict(plan), "left_out": tree.left_out})
            return plan
        plan = read_tree_plan(build_dir)
    if (plan.name, plan.spec12) != (name, spec12(spec)):
        raise DatasetError(f"{build_dir} belongs to another dataset ({plan.name!r}, {plan.spec12}); build {name!r} somewhere else")
    return plan


def is_tree(plain: Any) -> bool:
    """Whether the content of a plan.json is that of a tree."""
    return isinstance(plain, Mapping) and plain.get("schema") == SCHEMA


def has_tree_plan(build_dir: Path) -> bool:
    """Whether a tree is hashed there. Raises DatasetError where there is no plan."""
    return is_tree(read_json(build_dir / FILE_NAME, DatasetError, MAX_BYTES))


def read_tree_plan(build_dir: Path) -> TreePlan:
    """The plan in `build_dir`. Raises DatasetError when it is missing or of another version."""
    path, again = build_dir / FILE_NAME, f"remove {build_dir} and build again"
    plain = read_json(path, DatasetError, MAX_BYTES)
    if not is_tree(plain):
        raise DatasetError(f"{path} is not a plan of this version of Slipway, {SCHEMA}; {again}")
    return read_as(TreePlan, plain, path, DatasetError, again)


def read_left_out(build_dir: Path) -> list[tuple[str, str]]:
    """What of the tree is not taken along: (name, reason)."""
    plain = read_json(build_dir / FILE_NAME, DatasetError, MAX_BYTES)
    return read_as(_LeftOut, plain, build_dir / FILE_NAME, DatasetError).left_out


@dataclass(frozen=True, kw_only=True)
class _LeftOut:
    left_out: list[tuple[str, str]]


def changed_since(build_dir: Path) -> str | None:
    """What to say of a tree that is not any more what the dataset was made of; None: it is. Raises DatasetError, StorageError."""
    plan = read_tree_plan(build_dir)
    found = plan.changes(list_tree(Path(plan.path)))
    return found and f"{plan.path} is not what it was when it was listed: {found}"
