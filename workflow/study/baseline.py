"""The cells that speed-up is relative to: the values that name them, and that there are such cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from workflow.study.cell import Cell
from workflow.study.explain import Fault, fault_error, some
from workflow.study.loader import Document
from workflow.study.model import StudyFile

NOT_IN_BASELINE: Final = ("optimizer", "steps")


def baseline_of(document: Document, keys: StudyFile, cells: Sequence[Cell]) -> dict[str, Any]:
    """The baseline's keys and values: those of the file, else the fewest nodes, and the fewest GPUs with them where they differ."""
    if "baseline" not in keys.model_fields_set:
        nodes, gpus = min((cell.nodes, cell.gpus_per_node) for cell in cells)
        return {"nodes": nodes} if all(cell.gpus_per_node == gpus for cell in cells) else {"nodes": nodes, "gpus_per_node": gpus}
    given: dict[str, Any] = keys.baseline.model_dump(exclude_unset=True)
    odd = [key for key in NOT_IN_BASELINE if key in given]
    if odd or not given:
        found = f"found {odd[0]}" if odd else "found no key"
        place = ("baseline", *odd[:1])
        raise fault_error(document, [Fault(place=place, message=f"{found}; valid: keys with one value, such as nodes: 1")])
    if not any(all(getattr(cell, key) == value for key, value in given.items()) for cell in cells):
        raise fault_error(document, [_no_baseline(given, cells)])
    return given


def _no_baseline(given: Mapping[str, Any], cells: Iterable[Cell]) -> Fault:
    have = {key: sorted({str(getattr(cell, key)) for cell in cells}, key=lambda text: (len(text), text)) for key in given}
    for key, value in given.items():
        if str(value) not in have[key]:
            return Fault(
                place=("baseline", key),
                message=f"found {value}, and no cell has it: no speed-up could be computed; valid: {some(have[key])}",
            )
    wanted = ", ".join(f"{key}: {value}" for key, value in given.items())
    return Fault(
        place=("baseline",), message=f"no cell has {{{wanted}}} together: no speed-up could be computed; valid: values that meet in a cell"
    )
