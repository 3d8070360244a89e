"""The layers a cell's keys come from: base, axes, zip rows, include rows; their values, and whether they contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from base.errors import SlipwayError
from base.names import choices
from containers.frameworks import load_framework
from containers.models import MODELS
from workflow.study.cell import ARGS, NO_DATASET, plain_text
from workflow.study.explain import Fault
from workflow.study.model import StudyFile, defaults
from workflow.study.places import Place

MAX_CELLS: Final = 100_000
EXCLUSIVE: Final = (("batch_size", "global_batch_size"), ("steps", "epochs"), ("framework", "program"))
NEEDED: Final = (("model", ("model", "program")), ("dataset", ("dataset", "program")))
"""What a cell cannot do without, and the keys that say it."""
MERGED: Final = ("optimizer", "steps")


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The given keys of each layer as plain values, `optimizer` and `steps` already completed from base and defaults; each argument is
    a key of its own, `args.width`."""

    base: Mapping[str, Any]
    given: frozenset[str]  # keys of base that the file names
    axes: Mapping[str, tuple[Any, ...]]
    zip: tuple[Mapping[str, Any], ...]
    include: tuple[Mapping[str, Any], ...]

    @property
    def has_matrix(self) -> bool:
        """Whether there are cells besides the include rows: not when only `include` says which."""
        return bool(self.axes or self.zip or not self.include)

    @property
    def arguments(self) -> tuple[str, ...]:
        """`args.NAME` of every argument that some cell may have."""
        keys = {*self.base, *self.axes, *(key for row in (*self.zip, *self.include) for key in row)}
        return tuple(sorted(key for key in keys if key.startswith(ARGS)))

    @property
    def num_cells(self) -> int:
        """Cells before any is excluded."""
        return math.prod(map(len, self.axes.values())) * max(1, len(self.zip)) * self.has_matrix + len(self.include)


def layers_of(keys: StudyFile) -> Layers:
    """The layers of a valid study file."""
    given = _with_single_args(keys.base.model_dump(exclude_unset=True))
    given.pop("repeats", None)
    plain = _with_single_args(defaults())
    merged = {key: {**plain[key], **given.get(key, {})} for key in MERGED}
    base = {**plain, **given, **merged}

    def complete(row: Mapping[str, Any]) -> dict[str, Any]:
        return {key: {**merged[key], **value} if key in MERGED else value for key, value in _with_single_args(row).items()}

    given_axes = _with_single_args(keys.axes.model_dump(exclude_unset=True))
    axes = {key: tuple(complete({key: value})[key] for value in values) for key, values in given_axes.items()}
    rows = [tuple(complete(row.model_dump(exclude_unset=True)) for row in part) for part in (keys.zip, keys.include)]
    return Layers(base=base, given=frozenset(given), axes=axes, zip=rows[0], include=rows[1])


def _with_single_args(keys: Mapping[str, Any]) -> dict[str, Any]:
    """`args: {width: 512}` as `args.width: 512`."""
    args = {f"{ARGS}{name}": value for name, value in (keys.get("args") or {}).items()}
    return {**{key: value for key, value in keys.items() if key != "args"}, **args}


def layer_faults(layers: Layers, datasets: Mapping[str, Any], programs: Mapping[str, Any]) -> list[Fault]:
    """What is wrong before any cell is made."""
    has_programs = any(key == "program" for _, key, _ in _values(layers))
    faults = [*_zip_faults(layers), *_repeated(layers), *_combination_faults(layers)]
    if datasets[NO_DATASET].source != NO_DATASET:
        found = f"found source: {datasets[NO_DATASET].source} under {NO_DATASET!r}, which means no dataset; valid: another name"
        faults.append(Fault(place=("datasets", NO_DATASET), message=found))
    for place, key, value in _values(layers):
        message = _word_fault(key, value, datasets, programs) if key != "steps" else _steps_fault(value)
        if key == "model" and not has_programs and value not in MODELS:
            message = f"found {value!r}, which is not a model; {choices(value, MODELS)}"
        if message:
            faults.append(Fault(place=place, message=message))
    if not faults and layers.num_cells > MAX_CELLS:
        factors = [f"{len(values)} {key}" for key, values in layers.axes.items()] + ([f"{len(layers.zip)} zip rows"] if layers.zip else [])
        counted = f"{layers.num_cells:,} cells ({' x '.join(factors)})"
        faults.append(Fault(place=("axes",), message=f"found {counted}, before exclude; valid: at most {MAX_CELLS:,} in a study"))
    return faults


def _values(layers: Layers) -> Iterator[tuple[Place, str, Any]]:
    for key in layers.given:
        yield ("base", key), key, layers.base[key]
    for key, values in layers.axes.items():
        for number, value in enumerate(values):
            yield ("axes", key, number), key, value
    for part, rows in (("zip", layers.zip), ("include", layers.include)):
        for number, row in enumerate(rows):
            for key, value in row.items():
                yield (part, number, key), key, value


def _word_fault(key: str, value: Any, datasets: Mapping[str, Any], programs: Mapping[str, Any]) -> str | None:
    """What is wrong with the name of a dataset, program or framework."""
    if key == "dataset" and value not in datasets:
        return f"found {value!r}, which is not under datasets; {choices(value, datasets)}"
    if key == "program" and value not in programs:
        return (
            f"found {value!r}, which is not under programs; {choices(value, programs) if programs else 'valid: a name that stands there'}"
        )
    if key == "framework":
        try:
            load_framework(value)
        except SlipwayError as error:
            return str(error)
    return None


def _steps_fault(steps: Mapping[str, int]) -> str | None:
    needed = steps["warmup"] + steps["measured"]
    total = steps.get("total", needed)
    return (
        f"found total {total}; valid: at least warmup {steps['warmup']} + measured {steps['measured']} = {needed}"
        if total < needed
        else None
    )


def _zip_faults(layers: Layers) -> Iterator[Fault]:
    for number, row in enumerate(layers.zip):
        both = sorted(set(row) & set(layers.axes))
        if both and number == 0:
            yield Fault(place=("zip", 0, both[0]), message=f"{both[0]} stands in axes and in zip; valid: one of them")
        if not row:
            yield Fault(
                place=("zip", number), message="found an empty row; valid: keys that vary together, such as {nodes: 1, batch_size: 64}"
            )
        elif set(row) != set(layers.zip[0]):
            odd = ", ".join(sorted(set(row) ^ set(layers.zip[0])))
            yield Fault(
                place=("zip", number), message=f"this row and the first differ in their keys ({odd}); valid: the same keys in every row"
            )


def _repeated(layers: Layers) -> Iterator[Fault]:
    lists: list[tuple[Place, tuple[Any, ...]]] = [(("axes", key), values) for key, values in layers.axes.items()]
    for place, values in [*lists, (("zip",), layers.zip)]:
        marks: set[str] = set()
        for number, value in enumerate(values):
            mark = repr(value) if not str(place[-1]).startswith(ARGS) else plain_text(value)
            if mark in marks:
                yield Fault(place=(*place, number), message=f"the same value stands here twice: {_short(value)}; valid: each once")
            marks.add(mark)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)[:80]


def _combination_faults(layers: Layers) -> Iterator[Fault]:
    """Keys that exclude each other, and keys that a cell cannot do without, for the matrix and for each include row."""
    rows = [(("include", number), set(row)) for number, row in enumerate(layers.include)]
    parts: list[tuple[Place, set[str]]] = [*rows]
    if layers.has_matrix:
        parts.insert(0, (("axes",), {*layers.axes, *(layers.zip[0] if layers.zip else ())}))
    for place, keys in parts:
        both = keys | layers.given
        for one, other in EXCLUSIVE:
            if one in both and other in both:
                where = next((p for k in (one, other) for p in [place_of(layers, place, k)] if p[0] != "base"), ("base", other))
                yield Fault(place=where, message=f"{one} and {other} are both given for the same cells; valid: exactly one of them")
        for key, sayers in NEEDED:
            if not both & set(sayers):
                yield Fault(place=place, message=f"no {key} for these cells; valid: {key} in base, axes, zip or each include row")
        if not both & {"batch_size", "global_batch_size"}:
            yield Fault(place=place, message="no batch for these cells; valid: exactly one of batch_size (per GPU) and global_batch_size")


def place_of(layers: Layers, part: Place, key: str) -> Place:
    """The place of `key` for the cells of `part`: an include row, a zip row, or the axes alone."""
    if part[0] == "include":
        return (*part, key) if key in layers.include[int(part[1])] else ("base", key)
    if key in layers.axes:
        return ("axes", key)
    if layers.zip and key in layers.zip[0]:
        return (*part, key) if part[0] == "zip" else ("zip", 0, key)
    return ("base", key)
