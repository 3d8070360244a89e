"""Short names for series: only the keys that differ inside the study, so that a legend can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from workflow.report.cells import CellResult
from workflow.study.baseline_keys import NOT_SERIES, PARAMETERS_FILE, TOLD_BY_FRAMEWORK, file_digest, tells_nothing
from workflow.study.cell import ARGS, SIZES, WORDS, plain_text

PREFIX: Final = {"comm_hook": "hook ", "augmentation": "augmentation "}
STEP_WORDS: Final = {"steps.warmup": "warm-up steps", "steps.measured": "measured steps", "steps.total": "steps in all"}
DETAILS: Final = ("dataset_spec", "optimizer", "steps", "args")


def flat_keys(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that make a series, nested ones as `optimizer.learning_rate`; the best known first."""
    flat = {}
    for key in (*WORDS, *sorted(cell.keys() - set(WORDS) - set(NOT_SERIES) - set(TOLD_BY_FRAMEWORK))):
        value = cell.get(key)
        if key in DETAILS and isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in sorted(value.items())})
        else:
            flat[key] = file_digest(value) if key == PARAMETERS_FILE else value
    return flat


def varying(cells: Sequence[CellResult]) -> list[str]:
    """Keys with more than one value among the cells. Two names of a data set hide what differs in its specification."""
    flats = [flat_keys(cell) for cell in {cell.series: cell.keys for cell in cells}.values()]
    names = dict.fromkeys(name for flat in flats for name in flat)
    found = [name for name in names if name not in tells_nothing(flats) and len({repr(flat.get(name)) for flat in flats}) > 1]
    return [name for name in found if not (name.startswith("dataset_spec.") and "dataset" in found)]


def constant(cells: Sequence[CellResult]) -> str:
    """What all cells share of the best known keys beside the model: `pytorch, digits, train, fp32, nchw`."""
    if not cells:
        return ""
    flat, *others = [flat_keys(cell) for cell in {cell.series: cell.keys for cell in cells}.values()]
    same = [name for name in WORDS[1:] if all(other.get(name) == flat[name] for other in others)]
    shown = [f"{PREFIX.get(name, '')}{flat[name]}" for name in same if flat[name] not in (None, "none", "site")]
    return ", ".join(shown)


def telling(cells: Sequence[CellResult]) -> list[str]:
    """Of the keys that vary those which a legend needs: without a detail of optimizer or steps where the others tell the series apart."""
    names = varying(cells)
    flats = [flat_keys(cell) for cell in {cell.series: cell.keys for cell in cells}.values()]

    def kinds(of: Sequence[str]) -> int:
        return len({tuple(repr(flat.get(name)) for name in of) for flat in flats})

    for name in reversed([name for name in names if name.split(".")[0] in DETAILS]):
        without = [other for other in names if other != name]
        if kinds(without) == kinds(names):
            names = without
    return names


def detail_title(name: str) -> str:
    """`learning rate`, `measured steps`: the key without the one that it stands in, but for words that say nothing alone."""
    inner = name.rpartition(".")[2]
    if name.startswith(ARGS) and inner in (*WORDS, *SIZES):
        return name  # an argument that is called as a key of the cell
    return STEP_WORDS.get(name) or inner.replace("_", " ")


def value_text(name: str, value: Any) -> str:
    """`resnet18`, `hook fp16`, `learning_rate 0.1`."""
    if name in WORDS:
        prefix = PREFIX.get(name, "")
        return f"{prefix}{value}" if value != "none" or not prefix else f"no {prefix.strip()}"
    return f"{detail_title(name)} {plain_text(value)}"


def series_words(cell: CellResult, names: Sequence[str]) -> list[str]:
    """The values of the keys `names`, as a legend has them."""
    flat = flat_keys(cell.keys)
    return [value_text(name, flat.get(name)) for name in names]


def batch_text(kind: str, size: int) -> str:
    """What a line holds constant: `batch 32` of each process (weak), or `global batch 64` (strong)."""
    return f"global batch {size}" if kind == "strong" else f"batch {size}"
