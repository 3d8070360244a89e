"""Make the table of layers: where the time of a step goes, by the profile runs of a study's cells, or by one trace."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from msgspec import Struct

from containers.models.facts import LayerCost
from workflow.report.analysis import Analysis
from workflow.report.cell_columns import key_columns, linked, sentence, size_columns
from workflow.report.cells import CellResult
from workflow.report.networks import Use, networks, with_implementations
from workflow.report.profile.profile import Profile, short_kernel
from workflow.report.profile.runs import profiles_in
from workflow.report.table import GIGA, MEGA, MILLI, Column, Reason, Table, numbers, percent, significant, words

TITLES: Final = {"functional": "between layers", "unattributed": "unknown"}
"""Row of the profile -> its title, where that is another word."""
PASSES: Final = {"forward": "Forward", "backward": "Backward", "backward_data": "of data", "backward_weights": "of weights"}
CAPTION: Final = (
    "Milliseconds of a mean traced step. Of data, of weights: parts of the backward, if the names of its kernels show them. At the same "
    "time: work beside other work, which counts once. Not computing: the rest of the step; it is negative if the traced work takes longer "
    "than the step"
)
ON_CPU: Final = "On a CPU one operator computes the gradients of both data and weights. Operators take longer while they are traced"
COUNTED: Final = (
    "GFLOP/s: 2 FLOP for each multiply-add of the layer, over its time; an FFT and Winograd need fewer, so they can be above the peak. "
    "Moves: what it reads and writes by arithmetic, once for each pass"
)
STACKED: Final = ("Input", "Forward", "Backward", "Communication", "Optimizer", "Loss", "Other", "Not computing")
"""The parts of the picture."""


class Row(Struct, frozen=True, kw_only=True):
    """A row of one step: a layer, or what else a step has, whose time is that of `forward`."""

    name: str
    spent_ms: Mapping[str, float | None] = {}
    """Pass -> milliseconds of a mean step."""
    share: float | None = None
    cost: LayerCost | None = None
    algorithm: str = ""
    kernel: str = ""


def profiles(analysis: Analysis) -> Iterator[tuple[CellResult, Use | None, Profile | str]]:
    """Yield each cell that has a profile run with a record, its network where that is known, and its profile or why it has none."""
    cells = {(cell.source, cell.cell_id): cell for cell in analysis.cells}
    of_sources = [(one, [cell.cell for cell in analysis.cells if cell.source == one.label]) for one in analysis.sources]
    told = [((source.label, cell.cell_id), found) for source, own in of_sources for cell, found in profiles_in(source.directory, own)]
    uses = networks(analysis) if told else {}
    for key, found in told:
        use = uses.get(key)
        known = None if use is None or use.as_published else use
        if isinstance(found, str):
            yield cells[key], known, found
        else:
            yield cells[key], known, with_implementations(found.profile, found.onednn, known) if known else found.profile


def step_of(cell: CellResult, profile: Profile) -> float:
    """Return the milliseconds that shares are given of: the median step of the measured runs where a GPU was traced, whose kernels take as
    long as ever; else the traced step, in which operators of a processor take longer too."""
    if profile.device != "cpu" and cell.step_s is not None:
        return 1000 * cell.step_s.value
    return profile.step_ms


def rest_of(profile: Profile, step_ms: float) -> dict[str, float]:
    """Return what a step has beside layers: the rows of the profile, what is done at the same time (below 0), and not computing, which is
    below 0 too where the work in the trace takes longer than the step that was measured."""
    rest = {TITLES.get(name, name): spent for name, spent in profile.other.items() if spent}
    if profile.overlap_ms:
        rest["at the same time"] = -profile.overlap_ms
    return {**rest, "not computing": round(step_ms - profile.worked_ms + profile.overlap_ms, 5) + 0.0}


def stacked(profile: Profile, step_ms: float) -> dict[str, float]:
    """Return the parts of a bar in milliseconds. What is done at the same time is taken from what hides it, communication first."""
    rest = {title.capitalize(): spent for title, spent in rest_of(profile, step_ms).items()}
    hidden = -rest.pop("At the same time", 0.0)
    rest["Forward"] = sum(one.forward_ms for one in profile.layers)
    rest["Backward"] = sum(one.backward_ms for one in profile.layers)
    found = {title: max(0.0, rest.pop(title, 0.0)) for title in STACKED if title != "Other"} | {"Other": sum(rest.values())}
    for title in ("Communication", "Other", "Input", "Backward", "Forward"):
        taken = min(hidden, found[title])
        found[title], hidden = found[title] - taken, hidden - taken
    return {title: found[title] for title in STACKED}


def layers(analysis: Analysis) -> Table:
    """Build the table `layers`: of each profiled cell one row per layer, and what else its step has."""
    found: list[tuple[CellResult, Row]] = []
    devices = set()
    for cell, use, profile in profiles(analysis):
        if isinstance(profile, str):
            found.append((cell, Row(name="no profile", kernel=Reason(profile))))
        else:
            devices.add(profile.device)
            found += [(cell, row) for row in _rows(profile, step_of(cell, profile), {} if use is None else use.costs)]
    cells = [cell for cell, _ in found]
    table = _table([row for _, row in found], devices, [*key_columns(analysis, cells), *size_columns(cells)])
    is_alone = any(cell.num_processes == 1 and row.name == "communication" for cell, row in found)
    caption = sentence(
        "Share: on a GPU of the median step of the measured runs, else of the traced step",
        "Communication of one process: what DistributedDataParallel does there for an exchange" if is_alone else "",
        analysis.shared,
    )
    return replace(table, caption=f"{table.caption} {caption}", columns=linked(analysis, table.columns, cells))


def layers_of_trace(profile: Profile, step_ms: float, costs: Mapping[str, LayerCost]) -> Table:
    """Build the table of the layers of one trace, with shares of `step_ms`. `costs`: of the layers by their names in the trace."""
    return _table(list(_rows(profile, step_ms, costs)), {profile.device})


def _rows(profile: Profile, step_ms: float, costs: Mapping[str, LayerCost]) -> Iterator[Row]:
    for one in profile.layers:
        yield Row(
            name=one.name,
            spent_ms={name: getattr(one, f"{name}_ms") for name in PASSES},
            share=(one.forward_ms + one.backward_ms) / step_ms if step_ms else None,
            cost=costs.get(one.name),
            algorithm=one.algorithm or "",
            kernel=" / ".join(dict.fromkeys(short_kernel(name) for name in (one.forward_kernel, one.backward_kernel) if name)),
        )
    for name, spent in {**rest_of(profile, step_ms), "step": step_ms}.items():
        yield Row(name=name, spent_ms={"forward": spent}, share=spent / step_ms if step_ms else None)


def _table(rows: Sequence[Row], devices: Collection[str], keys: Sequence[Column] = ()) -> Table:
    """Build the table of `rows`, with `keys` as its first columns, and what is counted of layers where that is known."""
    is_counted = any(row.cost for row in rows)
    counted = [
        *[
            numbers(f"{name}_flop_per_s", f"{title} [GFLOP/s]", partial(_in_unit, GIGA), [_rate(row, name) for row in rows])
            for name, title in PASSES.items()
        ],
        numbers(
            "bytes",
            "Moves [MB]",
            partial(_in_unit, MEGA),
            [row.cost and (row.cost.forward_bytes + row.cost.backward_bytes) for row in rows],
        ),
    ]
    columns = (
        *keys,
        words("layer", "Layer", [row.name for row in rows]),
        *[
            numbers(f"{name}_ms", f"{title} [ms]", partial(_in_unit, 1), [row.spent_ms.get(name) for row in rows])
            for name, title in PASSES.items()
        ],
        numbers("share", "Share", lambda value: "" if value is None else percent(value), [row.share for row in rows]),
        *(counted if is_counted else []),
        words("algorithm", "Algorithm", [row.algorithm for row in rows]),
        words("kernel", "Longest kernel", [row.kernel for row in rows], wrap=True),
    )
    return Table(
        name="layers",
        title="Where a step goes",
        caption=sentence(CAPTION, ON_CPU if "cpu" in devices else "", COUNTED if is_counted else ""),
        columns=columns,
        empty="No cell has a profile: the key profile of the study, or slipway profile STUDY, makes them.",
    )


def _rate(row: Row, name: str) -> float | None:
    """Return FLOP/s of a pass; None where it computes none, or where its time is not known."""
    flop, spent_ms = getattr(row.cost, f"{name}_flop", None), row.spent_ms.get(name)
    return flop / (MILLI * spent_ms) if flop and spent_ms else None


def _in_unit(unit: float, value: float | None) -> str:
    return "" if value is None else significant(value / unit)
