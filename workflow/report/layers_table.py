"""Make the table of layers: where the time of a step goes, by the profile runs of a study's cells, or by one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from containers.models.facts import LayerCost
from workflow.report.analysis import Analysis
from workflow.report.cells import CellResult
from workflow.report.keys import key_columns, linked, sentence, size_columns
from workflow.report.networks import Use, networks, with_implementations
from workflow.report.profile.profile import Layer, Profile, short_kernel
from workflow.report.profile.runs import profiles_in
from workflow.report.table import Column, Reason, Table, numbers, percent, significant, words

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
TITLE: Final = "Where a step goes"
CAPTION: Final = (
    "Milliseconds of a mean step that was traced; of data, of weights: parts of the backward, where the names of its kernels tell them. At "
    "the same time: work beside other work, which counts once. Not computing: the rest of the step, below 0 where the work in the trace "
    "takes longer than it"
)
ON_CPU: Final = (
    "On a CPU one operator computes the gradients of data and of weights, so that they are not told apart; its operators take longer while "
    "they are traced"
)
COUNTED: Final = (
    "GFLOP/s: 2 FLOP for each multiply-add of the layer, over its time; an FFT and Winograd need fewer, so they can be above the peak. "
    "Moves: what it reads and writes by arithmetic, once for each pass"
)
MOST_GROUPS: Final = 9
MOSTLY: Final = 0.85
OTHER_LAYERS: Final = "other layers"
MILLI, MEGA, GIGA = 1e-3, 1e6, 1e9
STACKED: Final = ("Forward", "Backward", "Optimizer", "Loss", "Communication", "Other", "Not computing")
"""The parts of the picture."""


class Row(Struct, frozen=True, kw_only=True):
    """A row of one step: a layer, or what else a step has. Times are milliseconds of a mean step."""

    name: str
    forward_ms: float | None = None
    backward_ms: float | None = None
    layer: Layer | None = None
    cost: LayerCost | None = None
    share: float | None = None
    reason: str = ""


def profiles(analysis: Analysis) -> Iterator[tuple[CellResult, Use | None, Profile | str]]:
    """Yield each cell that has a profile run with a record, its network where that is known, and its profile or why it has none."""
    uses = networks(analysis)
    for source in analysis.sources:
        own = {cell.cell_id: cell for cell in analysis.cells if cell.source == source.label}
        for cell, found in profiles_in(source.place, [one.cell for one in own.values()]):
            use = uses.get((source.label, cell.cell_id))
            known = None if use is None or use.as_published else use
            if isinstance(found, str):
                yield own[cell.cell_id], known, found
            else:
                profile = found.profile if known is None else with_implementations(found.profile, found.onednn, known)
                yield own[cell.cell_id], known, profile


def step_of(cell: CellResult, profile: Profile) -> float:
    """Return the milliseconds that shares are given of: the median step of the measured runs where a GPU was traced, whose kernels take as
    long as ever; else the traced step, in which operators of a processor take longer too."""
    if profile.device != "cpu" and cell.step_s is not None:
        return 1000 * cell.step_s.value
    return profile.step_ms


def rest_of(profile: Profile, step_ms: float) -> dict[str, float]:
    """Return what a step has beside layers: the rows of the profile, what is done at the same time (below 0), and not computing, which is
    below 0 too where the work in the trace takes longer than the step that was measured."""
    rest = {title: profile.other[name] for name, title in ROWS.items() if profile.other.get(name)}
    if profile.overlap_ms:
        rest["at the same time"] = -profile.overlap_ms
    return {**rest, "not computing": step_ms - profile.worked_ms + profile.overlap_ms}


def stacked(profile: Profile, step_ms: float) -> dict[str, float]:
    """Return the parts of a bar in milliseconds. What is done at the same time is taken from what hides it, communication first."""
    rest = rest_of(profile, step_ms)
    found = dict.fromkeys(STACKED, 0.0)
    found["Forward"] = sum(one.forward_ms for one in profile.layers)
    found["Backward"] = sum(one.backward_ms for one in profile.layers)
    hidden = -rest.pop("at the same time", 0.0)
    for title in ("Optimizer", "Loss", "Communication", "Not computing"):
        found[title] = max(0.0, rest.pop(title.lower(), 0.0))
    found["Other"] = sum(rest.values())
    for title in ("Communication", "Other", "Backward", "Forward"):
        taken = min(hidden, found[title])
        found[title], hidden = found[title] - taken, hidden - taken
    return found


def layer_groups(found: Sequence[Profile]) -> dict[str, str]:
    """Return for each layer of a network the name under which a picture shows it: its own, that of the part of the network which it is in,
    as long as MOST_GROUPS of these have MOSTLY of the time, or OTHER_LAYERS."""
    spent: Counter[str] = Counter()
    for one in found:
        spent.update({layer.name: layer.forward_ms + layer.backward_ms for layer in one.layers})
    for depth in range(max((name.count(".") + 1 for name in spent), default=1), 0, -1):
        groups = {name: ".".join(name.split(".")[:depth]) for name in spent}
        sizes: Counter[str] = Counter()
        for name, group in groups.items():
            sizes[group] += spent[name]
        shown = dict(sizes.most_common(MOST_GROUPS))
        if sum(shown.values()) >= MOSTLY * spent.total():
            break
    return {name: group if group in shown else OTHER_LAYERS for name, group in groups.items()}


def layers(analysis: Analysis) -> Table:
    """Build the table `layers`: of each profiled cell one row per layer, and what else its step has."""
    told = list(profiles(analysis))
    found = [(cell, row) for cell, use, profile in told for row in _rows_of_cell(cell, use, profile)]
    cells, rows = [cell for cell, _ in found], [row for _, row in found]
    shares = "Share: on a GPU of the median step of the measured runs, else of the traced step"
    is_alone = any(cell.num_processes == 1 and row.name == "communication" for cell, row in found)
    alone = "Communication of one process: what DistributedDataParallel does there for an exchange" if is_alone else ""
    columns = [*key_columns(analysis, cells), *size_columns(cells), *_columns(rows)]
    return Table(
        name="layers",
        title=TITLE,
        caption=sentence(_caption([one for _, _, one in told if not isinstance(one, str)], rows), alone, shares, analysis.shared),
        columns=linked(analysis, columns, cells),
        empty="No cell has a profile: the key profile of the study, or slipway profile STUDY, makes them.",
    )


def layers_of_trace(profile: Profile, step_ms: float, costs: Mapping[str, LayerCost]) -> Table:
    """Build the table of the layers of one trace, with shares of `step_ms`. `costs`: of the layers by their names in the trace."""
    rows = list(_rows(profile, step_ms, costs))
    return Table(name="layers", title=TITLE, caption=sentence(_caption([profile], rows)), columns=tuple(_columns(rows)))


def _caption(found: Sequence[Profile], rows: Sequence[Row]) -> str:
    on_cpu = any(one.device == "cpu" for one in found)
    counted = any(row.cost for row in rows)
    return ". ".join([CAPTION, *([ON_CPU] if on_cpu else []), *([COUNTED] if counted else [])])


def _rows_of_cell(cell: CellResult, use: Use | None, found: Profile | str) -> Iterator[Row]:
    if isinstance(found, str):
        yield Row(name="no profile", reason=found)
    else:
        yield from _rows(found, step_of(cell, found), {} if use is None else use.costs)


def _rows(profile: Profile, step_ms: float, costs: Mapping[str, LayerCost]) -> Iterator[Row]:
    for one in profile.layers:
        share = (one.forward_ms + one.backward_ms) / step_ms if step_ms else None
        cost = costs.get(one.name)
        yield Row(name=one.name, forward_ms=one.forward_ms, backward_ms=one.backward_ms, layer=one, cost=cost, share=share)
    for name, spent in {**rest_of(profile, step_ms), "step": step_ms}.items():
        yield Row(name=name, forward_ms=spent, share=spent / step_ms if step_ms else None)


def _columns(rows: Sequence[Row]) -> list[Column]:
    layers = [row.layer for row in rows]
    return [
        words("layer", "Layer", [row.name for row in rows]),
        numbers("forward_ms", "Forward [ms]", _or_nothing, [row.forward_ms for row in rows]),
        numbers("backward_ms", "Backward [ms]", _or_nothing, [row.backward_ms for row in rows]),
        numbers("backward_data_ms", "of data [ms]", _or_nothing, [one and one.backward_data_ms for one in layers]),
        numbers("backward_weights_ms", "of weights [ms]", _or_nothing, [one and one.backward_weights_ms for one in layers]),
        numbers("share", "Share", _share, [row.share for row in rows]),
        *_counted(rows),
        words("algorithm", "Algorithm", [one and one.algorithm for one in layers]),
        words("kernel", "Longest kernel", [_kernel(row) for row in rows], wrap=True),
    ]


def _counted(rows: Sequence[Row]) -> Iterator[Column]:
    """Yield the columns of what is counted of the layers, where there are such."""
    known = [(row.layer, row.cost) if row.layer is not None and row.cost is not None else None for row in rows]
    rates: dict[str, list[float | None]] = {
        "forward": [pair and _rate(pair[1].forward_flop, pair[0].forward_ms) for pair in known],
        "backward": [pair and _rate(pair[1].data_flop + pair[1].weights_flop, pair[0].backward_ms) for pair in known],
        "backward_data": [pair and _rate(pair[1].data_flop, pair[0].backward_data_ms) for pair in known],
        "backward_weights": [pair and _rate(pair[1].weights_flop, pair[0].backward_weights_ms) for pair in known],
    }
    titles = ("Forward", "Backward", "of data", "of weights")
    for (name, values), title in zip(rates.items(), titles, strict=True):
        if any(values):
            yield numbers(f"{name}_flop_per_s", f"{title} [GFLOP/s]", partial(_in, GIGA), values)
    sizes = [pair and (pair[1].forward_bytes + pair[1].backward_bytes or None) for pair in known]
    if any(sizes):
        yield numbers("bytes", "Moves [MB]", partial(_in, MEGA), sizes)


def _rate(flop: int, spent_ms: float | None) -> float | None:
    """Return FLOP/s of a pass; None where it computes none, or where its time is not known."""
    return flop / (MILLI * spent_ms) if flop and spent_ms else None


def _in(unit: float, value: float | None) -> str:
    return "" if value is None else significant(value / unit)


def _kernel(row: Row) -> str:
    if row.reason:
        return Reason(row.reason)
    kernels = (row.layer.forward_kernel, row.layer.backward_kernel) if row.layer is not None else ()
    return " / ".join(dict.fromkeys(short_kernel(kernel) for kernel in kernels if kernel))


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _or_nothing(value: float | None) -> str:
    return "" if value is None else significant(value)
