"""The cells that speed-up is relative to: the values that name them, and that there are such cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow.study.baseline_keys import flat, in_words, is_named, value_at
from workflow.study.cell import Cell
from workflow.study.explain import Fault, fault_error, some
from workflow.study.loader import Document
from workflow.study.model import StudyFile


def baseline_of(document: Document, keys: StudyFile, cells: Sequence[Cell]) -> dict[str, Any]:
    """The baseline's keys and values: those of the file, else the fewest nodes, and the fewest GPUs with them where they differ."""
    if "baseline" not in keys.model_fields_set:
        nodes, gpus = min((cell.nodes, cell.gpus_per_node) for cell in cells)
        return {"nodes": nodes} if all(cell.gpus_per_node == gpus for cell in cells) else {"nodes": nodes, "gpus_per_node": gpus}
    given: dict[str, Any] = keys.baseline.model_dump(exclude_unset=True)
    if not flat(given):
        raise fault_error(document, [Fault(place=("baseline",), message="found no key; valid: keys with one value, such as nodes: 1")])
    if not any(is_named(cell.to_json(), given) for cell in cells):
        raise fault_error(document, [_no_baseline(given, cells)])
    return given


def _no_baseline(given: Mapping[str, Any], cells: Iterable[Cell]) -> Fault:
    named = flat(given)
    all_keys = [cell.to_json() for cell in cells]
    have = {key: sorted({str(value_at(keys, key)) for keys in all_keys}, key=lambda text: (len(text), text)) for key in named}
    for key, value in named.items():
        if str(value) not in have[key]:
            return Fault(
                place=("baseline", *key.split(".")),
                message=f"found {value}, and no cell has it: no speed-up could be computed; valid: {some(have[key])}",
            )
    wanted = in_words(given)
    return Fault(
        place=("baseline",), message=f"no cell has {{{wanted}}} together: no speed-up could be computed; valid: values that meet in a cell"
    )
