"""Describe a cell for people who look at a study while it runs: `resnet18, batch 32, 2 nodes, repeat 1`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

from base.units import counted
from workflow.study.cell import WORDS, Cell, Run
from workflow.study.series import flat, redundant_keys
from workflow.study.site import Site, device_of

_DESCRIBED_ELSEWHERE: Final = ("cell_id", "model", "batch_size", "global_batch_size", "nodes", "gpus_per_node", "dataset_spec")
"""Keys that have words of their own, or another key that tells them."""
_NAMED: Final = ("comm_hook", "augmentation")
"""Words that do not speak for themselves."""


def words_of(cells: Iterable[Cell], site: Site, repeats: int) -> Callable[[Run], str]:
    """Return a function that tells a run from the others of its study: model, batch, size, and every other key that differs in `cells`."""
    flats = {cell.cell_id: flat(cell.to_json()) for cell in cells}
    names = _differing(flats)

    def words(run: Run) -> str:
        cell, keys = run.cell, flats[run.cell.cell_id]
        values = [_value(name, keys.get(name)) for name in names]
        repeat = [f"repeat {run.repeat}"] if repeats > 1 else []
        return ", ".join([cell.model, *values, f"batch {cell.batch_size}", _size(cell, site), *repeat])

    return words


def keys_not_in_ids(cells: Iterable[Cell]) -> Mapping[str, str]:
    """Return by cell id the keys that the id has as digits only: `strategy fsdp2, seed 1`.

    It is empty where ids tell all: they are names of results, and stay what they are when a key is added.
    """
    flats = {cell.cell_id: flat(cell.to_json()) for cell in cells}
    names = [name for name in _differing(flats) if name not in WORDS or name == "dataset"]
    return {cell_id: ", ".join(_value(name, keys.get(name)) for name in names) for cell_id, keys in flats.items()} if names else {}


def _differing(flats: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the keys with more than one value, but for those that have words of their own."""
    described = {*_DESCRIBED_ELSEWHERE, *redundant_keys(list(flats.values()))}
    names = dict.fromkeys(name for keys in flats.values() for name in keys)
    return [name for name in names if name not in described and len({repr(keys.get(name)) for keys in flats.values()}) > 1]


def stage_words(cell: Cell) -> str:
    """Describe what a run stages, and where to: `photos -> local disks of 2 nodes`."""
    if not cell.has_dataset:
        return "nothing"
    return f"{cell.dataset} -> local disk{'' if cell.nodes == 1 else 's'} of {counted(cell.nodes, 'node')}"


def train_words(cell: Cell, site: Site) -> str:
    """Describe what a run starts, and on what: `train with docker pytorch on 2 x 8 GPUs`."""
    unit, units = ("GPU", "GPUs") if device_of(cell.device, site) == "cuda" else ("process", "processes")
    return f"{cell.mode} with {site.engine} {PurePath(cell.framework).name} on {cell.nodes} x {counted(cell.gpus_per_node, unit, units)}"


def _size(cell: Cell, site: Site) -> str:
    unit = "GPU" if device_of(cell.device, site) == "cuda" else "process"
    each = (
        ""
        if cell.gpus_per_node == 1 and unit == "process"
        else f" x {counted(cell.gpus_per_node, unit, 'GPUs' if unit == 'GPU' else 'processes')}"
    )
    return f"{counted(cell.nodes, 'node')}{each}"


def _value(name: str, value: Any) -> str:
    return str(value) if name in WORDS and name not in _NAMED else f"{name.rpartition('.')[2].replace('_', ' ')} {value}"
