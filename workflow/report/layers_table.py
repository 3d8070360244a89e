"""Make the table of layers: where the time of a step goes, by the profile runs of a study's cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult
from workflow.report.keys import key_columns, linked, sentence, size_columns
from workflow.report.profile.profile import Layer, Profile, short_kernel
from workflow.report.profile.runs import RunProfile, profiles_in
from workflow.report.table import Reason, Table, numbers, percent, significant, words

ROWS: Final[Mapping[str, str]] = {
    "optimizer": "optimizer",
    "loss": "loss",
    "functional": "between layers",
    "communication": "communication",
    "input": "input",
    "copies": "copies",
    "unattributed": "unknown",
}
"""Row of the profile -> its title."""
STACKED: Final = ("Forward", "Backward", "Optimizer", "Loss", "Communication", "Other", "Not computing")
"""The parts of the picture."""


class Row(Struct, frozen=True, kw_only=True):
    """A row of one cell: a layer, or what else a step has. Times are milliseconds of a mean step."""

    cell: CellResult
    name: str
    forward_ms: float | None = None
    backward_ms: float | None = None
    layer: Layer | None = None
    share: float | None = None
    reason: str = ""


def profiles(analysis: Analysis) -> Iterator[tuple[CellResult, RunProfile | str]]:
    """Yield each cell that has a profile run with a record, and what that tells, or why it tells nothing."""
    for source in analysis.sources:
        own = {cell.cell_id: cell for cell in analysis.cells if cell.source == source.label}
        for cell, found in profiles_in(source.place, [one.cell for one in own.values()]):
            yield own[cell.cell_id], found


def step_of(cell: CellResult, profile: Profile) -> float:
    """Return the milliseconds that shares are given of: the median step of the measured runs where a GPU was traced, whose kernels take as
    long as ever; else the traced step, in which operators of a processor take longer too."""
    if profile.device != "cpu" and cell.step_s is not None:
        return 1000 * cell.step_s.value
    return profile.step_ms


def rest_of(cell: CellResult, profile: Profile) -> dict[str, float]:
    """Return what a step has beside layers: the rows of the profile, what is done at the same time (below 0), and not computing, which is
    below 0 too where the work in the trace takes longer than the step that was measured."""
    worked = sum(one.forward_ms + one.backward_ms + one.recomputed_ms for one in profile.layers) + sum(profile.other.values())
    rest = {title: profile.other[name] for name, title in ROWS.items() if profile.other.get(name)}
    rest |= {name: spent for name, spent in sorted(profile.other.items()) if name not in ROWS and spent}
    if profile.overlap_ms:
        rest["at the same time"] = -profile.overlap_ms
    return {**rest, "not computing": step_of(cell, profile) - worked + profile.overlap_ms}


def stacked(cell: CellResult, profile: Profile) -> dict[str, float]:
    """Return the parts of a cell's bar in milliseconds. What is done at the same time is taken from what hides it, communication first."""
    rest = rest_of(cell, profile)
    found = dict.fromkeys(STACKED, 0.0)
    found["Forward"] = sum(one.forward_ms for one in profile.layers)
    found["Backward"] = sum(one.backward_ms + one.recomputed_ms for one in profile.layers)
    hidden = -rest.pop("at the same time", 0.0)
    for title in ("Optimizer", "Loss", "Communication", "Not computing"):
        found[title] = max(0.0, rest.pop(title.lower(), 0.0))
    found["Other"] = sum(rest.values())
    for title in ("Communication", "Other", "Backward", "Forward"):
        taken = min(hidden, found[title])
        found[title], hidden = found[title] - taken, hidden - taken
    return found


def layers(analysis: Analysis) -> Table:
    """Build the table `layers`: of each profiled cell one row per layer, and what else its step has."""
    rows = [row for cell, found in profiles(analysis) for row in _rows(cell, found)]
    cells = [row.cell for row in rows]
    return Table(
        name="layers",
        title="Where a step goes",
        caption=sentence(
            "Milliseconds of a mean step of the profile run; of data, of weights: parts of the backward, where the names of its kernels "
            "tell them. Share: on a GPU of the median step of the measured runs, else of the traced step, whose operators take longer, "
            "too. At the same time: work beside other work, which counts once. Not computing: the rest of the step",
            analysis.shared,
        ),
        columns=linked(
            analysis,
            [
                *key_columns(analysis, cells),
                *size_columns(cells),
                words("layer", "Layer", [row.name for row in rows]),
                numbers("forward_ms", "Forward [ms]", _or_nothing, [row.forward_ms for row in rows]),
                numbers("backward_ms", "Backward [ms]", _or_nothing, [row.backward_ms for row in rows]),
                *[
                    numbers(key, title, _or_nothing, [None if row.layer is None else getattr(row.layer, key) for row in rows])
                    for key, title in (("backward_data_ms", "of data [ms]"), ("backward_weights_ms", "of weights [ms]"))
                ],
                numbers("share", "Share", _share, [row.share for row in rows]),
                words("algorithm", "Algorithm", [row.layer and row.layer.algorithm for row in rows]),
                words("kernel", "Longest kernel", [_kernel(row) for row in rows], wrap=True),
            ],
            cells,
        ),
        empty="No cell has a profile: the key profile of the study, or slipway profile STUDY, makes them.",
    )


def _rows(cell: CellResult, found: RunProfile | str) -> Iterator[Row]:
    if isinstance(found, str):
        yield Row(cell=cell, name="no profile", reason=found)
        return
    profile = found.profile
    step = step_of(cell, profile)
    for one in profile.layers:
        spent = one.forward_ms + one.backward_ms + one.recomputed_ms
        share = spent / step if step else None
        yield Row(
            cell=cell, name=one.name, forward_ms=one.forward_ms, backward_ms=one.backward_ms + one.recomputed_ms, layer=one, share=share
        )
    for name, spent in rest_of(cell, profile).items():
        yield Row(cell=cell, name=name, forward_ms=spent, share=spent / step if step else None)
    yield Row(cell=cell, name="step", forward_ms=step, share=1.0 if step else None)


def _kernel(row: Row) -> str:
    if row.reason:
        return Reason(row.reason)
    kernels = (row.layer.forward_kernel, row.layer.backward_kernel) if row.layer is not None else ()
    return " / ".join(dict.fromkeys(short_kernel(kernel) for kernel in kernels if kernel))


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _or_nothing(value: float | None) -> str:
    return "" if value is None else significant(value)
