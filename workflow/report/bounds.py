"""Find what bounds a cell, and what the removal of each part of its step would bring.

A record tells for each run how long the mean step would be without a part. The step over that is the gain of a run; runs make an estimate
of it with an interval, as of any ratio. Its share of the step is 1 - 1 / gain. The bound is the part with the largest share, if that is
MIN_SHARE or more; else the step is made of compute, which nothing but a faster processor, another precision or another network shortens.
Where the study has an anchor, a cell that differs in nothing but that the part is really gone, its rate over that of the cell takes the
place of the estimate.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from base.jsonfile import canonical_json
from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.cells import MEASURED, CellResult, Estimate, LogSample, geometric_mean, log_sample, ratio
from workflow.report.shared_columns import cell_table, counted_shape, line_label
from workflow.report.speedup import Comparison
from workflow.report.step_parts import Parts, mean_parts, network_s, node_bytes, sent_bytes
from workflow.report.table_type import (
    MEGA,
    MILLI,
    NONE,
    Column,
    Table,
    estimate_text,
    estimates,
    numbers,
    percent,
    scaled,
    significant,
    words,
)
from workflow.study.cell import NO_EXCHANGE


class Removable(NamedTuple):
    """A part that may bound a step: the column of a mean step without it, its title in the table, what removes it,
    and the words by which a sentence names it."""

    column: str
    title: str
    remedy: str
    cause: str


PARTS: Final = {
    "input": Removable("if_no_input_s", "No input wait", "input that is never waited for", "input"),
    "copy": Removable("if_no_copy_s", "No copy", "copies that are never waited for", "copies"),
    "communication": Removable("if_no_exposed_s", "No exposed communication", "a faster network", "communication"),
    "stragglers": Removable("if_no_skew_s", "No stragglers", "ranks that are all as fast as the others", "slow ranks"),
    "host": Removable("if_no_other_s", "No host", "a host that is never waited for", "the host"),
}
ANCHORS: Final[dict[str, tuple[str, str]]] = {"communication": ("comm_hook", NO_EXCHANGE), "input": ("reader", "memory")}
"""Part -> the key of the study, and its value, by which it is gone."""
MIN_SHARE: Final = 0.15
"""A part with a smaller share bounds nothing (benchmarks/bounds.py)."""
NAMED: Final = 0.05
"""A slow rank that costs so much is named, whatever bounds the cell."""
MAX_GAIN: Final = 1000.0
APART: Final = 0.1
"""The difference of two logarithms from which their values disagree: 10 %."""
OF_DISK: Final = 0.5
"""A disk is the cause if some task waited for one in so much of the time that the input was waited for, or more."""


class Gain(Struct, frozen=True, kw_only=True):
    """How many times as fast the cell would be without a part, whether an anchor measured that, and what the parts alone say then."""

    factor: Estimate
    is_anchor: bool = False
    estimated: Estimate | None = None

    @property
    def share(self) -> float:
        return share_of(self.factor.value)


class Bound(Struct, frozen=True, kw_only=True):
    """What bounds a cell: its share of the step, with the ends of its interval (None: there is none), and the gains that are known."""

    verdict: str
    """One of PARTS, `compute`, or `not known`."""
    share: float | None = None
    low: float | None = None
    high: float | None = None
    gains: Mapping[str, Gain] = {}
    notes: tuple[str, ...] = ()


def share_of(gain: float) -> float:
    """Return the share of a step whose removal brings `gain`."""
    return 1 - 1 / max(1.0, gain)


def gain_of(step_s: float, without_s: float) -> float:
    """Return how many times as fast a step is without a part, from 1 to MAX_GAIN."""
    if step_s <= 0:
        return 1.0
    return MAX_GAIN if without_s * MAX_GAIN <= step_s else max(1.0, step_s / without_s)


def bound_of(runs: Sequence[Mapping[str, object]], anchors: Mapping[str, Estimate] | None = None) -> Bound:
    """Judge a cell by its measured runs, which are rows of records.parquet, and by the gains that its anchors measured."""
    if not runs or any(run["if_step_s"] is None for run in runs):
        by_anchor = {part: Gain(factor=factor, is_anchor=True) for part, factor in (anchors or {}).items()}
        return Bound(verdict="not known", gains=by_anchor, notes=(_why_not_known(runs),))
    gains = {part: found for part in PARTS if (found := _gain(runs, part, (anchors or {}).get(part)))}
    best = max(gains, key=lambda part: gains[part].share, default=None)
    if best == "stragglers" and (cause := _cause(runs)) in gains and gains[cause].share >= MIN_SHARE:
        best = cause
    if best is None or gains[best].share < MIN_SHARE:
        rest = geometric_mean(log_sample([_rest(run) for run in runs]))
        high = None if rest.high is None else min(1.0, rest.high)
        notes = (*_slow_rank(runs, gains, None), *_doubts(gains, None))
        return Bound(verdict="compute", share=rest.value, low=rest.low, high=high, gains=gains, notes=notes)
    factor, share = gains[best].factor, gains[best].share
    low, high = (None if end is None else share_of(end) for end in (factor.low, factor.high))
    notes = (*_slow_rank(runs, gains, best), *_doubts(gains, best))
    if best == "input":
        notes = (_disk(runs, share), *notes)
    return Bound(verdict=best, share=share, low=low, high=high, gains=gains, notes=notes)


def _gain(runs: Sequence[Mapping[str, Any]], part: str, anchor: Estimate | None) -> Gain | None:
    factors = [gain_of(run["if_step_s"], seconds) for run in runs if (seconds := _without(run, part)) is not None]
    made = geometric_mean(log_sample(factors)) if len(factors) == len(runs) else None
    if anchor is None:
        return None if made is None else Gain(factor=made)
    return Gain(factor=anchor, is_anchor=True, estimated=made)


def _without(run: Mapping[str, Any], part: str) -> float | None:
    """Return the step time without a part; None if it is not known. With a GPU, the host part also includes the idle time of the GPU beyond
    its waits for batches, for copies and between the parts."""
    seconds: float | None = run[PARTS[part].column]
    if part != "host" or run["gpu_busy_ratio"] is None:
        return seconds
    step_s = run["if_step_s"]
    told = [run[PARTS[one].column] for one in ("input", "copy", "host")]
    waits = math.fsum(step_s - one for one in told if one is not None)
    idle_s = max(0.0, (1 - run["gpu_busy_ratio"]) * step_s - waits)
    without: float = (step_s if seconds is None else seconds) - idle_s
    return max(0.0, without)


def _rest(run: Mapping[str, Any]) -> float:
    """Return the share of compute, which is all that is in no part. A straggler counts only if its own cause is not one of the parts."""
    parts = [part for part in PARTS if part != "stragglers" or run["slow_part"] not in PARTS]
    shares = [share_of(gain_of(run["if_step_s"], seconds)) for part in parts if (seconds := _without(run, part)) is not None]
    return max(1 / MAX_GAIN, 1 - math.fsum(shares))


def _why_not_known(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return "no run was measured"
    if any(run["num_processes"] > 1 and run["mode"] != "infer" for run in runs):
        how = 'exchange_s; in your own program run.part("exchange") around that wait, if its backward pass does not include it'
        return f"a rank does not report how long it waits for the others ({how}), or a record is of an earlier version"
    return "its program reports no part of a step, or a record is of an earlier version"


# What is said beside a verdict: who is slow, whether the disk is the cause, and what is nearly as large.


def _cause(runs: Sequence[Mapping[str, object]]) -> Any:
    """Return in which part most of the runs have their straggler."""
    ((part, count),) = Counter(run["slow_part"] for run in runs).most_common(1)
    return part if 2 * count > len(runs) else None


def _slow_rank(runs: Sequence[Mapping[str, object]], gains: Mapping[str, Gain], bound: str | None) -> tuple[str, ...]:
    """Say who is slow where that bounds the cell, or where one rank is slow in most runs and costs NAMED or more."""
    bounds = bound is not None and bound in ("stragglers", _cause(runs))
    costs = "stragglers" in gains and gains["stragglers"].share >= NAMED
    one_rank = 2 * sum(run["straggler_rank"] is not None for run in runs) > len(runs)
    return (_who(runs),) if bounds or (costs and one_rank) else ()


def _who(runs: Sequence[Mapping[str, object]]) -> str:
    """Name the rank and the host that the others wait for, and by which part of its work."""
    found = Counter((run["straggler_rank"], _host(run), run["slow_part"]) for run in runs if run["straggler_rank"] is not None)
    if not found:
        return "ranks are slow in turn"
    (((rank, host, part), count),) = found.most_common(1)
    by = f", by its {part}" if part else ""
    return f"the others wait for rank {rank}{f' on {host}' if host else ''} in {count} of {len(runs)} runs{by}"


def _host(run: Mapping[str, Any]) -> str:
    hosts = (run["hosts"] or "").split(",")
    place = run["straggler_rank"] // max(1, run["gpus_per_node"])
    return hosts[place] if place < len(hosts) else ""


def _disk(runs: Sequence[Mapping[str, Any]], share: float) -> str:
    """Say whether the disk makes the input slow, by the load of the nodes."""
    waits = [run["io_wait_ratio"] for run in runs if run["io_wait_ratio"] is not None]
    if len(waits) < len(runs):
        return "nobody knows whether the disk or decoding is slow: the load of a node does not report waits for its disk"
    waited = math.fsum(waits) / len(waits)
    faults = [run["faults_per_s"] for run in runs if run["faults_per_s"] is not None]
    pages = f", {significant(math.fsum(faults) / len(faults))} pages/s were read for it" if faults else ""
    if waited >= OF_DISK * share:
        return f"its disk is slow: it was waited for in {percent(waited, 0)} of the time{pages}"
    return f"decoding or the reader is slow, not the disk, which was waited for in {percent(waited, 0)} of the time"


def _doubts(gains: Mapping[str, Gain], bound: str | None) -> tuple[str, ...]:
    """Name the part that may be as large as the bound, or may bound what compute does (None), by the ends of the intervals; and an anchor
    that disagrees with its estimate."""
    high = {part: share_of(one.factor.high) for part, one in gains.items() if part != bound and one.factor.high is not None}
    near = max(high, key=high.__getitem__, default=None)
    chosen = None if bound is None else gains[bound].factor
    least = MIN_SHARE if chosen is None else max(MIN_SHARE, share_of(chosen.low or chosen.value))
    found = []
    if near is not None and high[near] >= least:
        doubt = f"it may be bound by {_cause_of(near)}" if bound is None else f"{_cause_of(near)} may cost as much"
        found.append(f"{doubt}: up to {percent(high[near], 0)} of the step")
    for part, one in gains.items():
        if one.estimated is not None and _disagree(one.factor, one.estimated):
            found.append(f"{part}: the anchor measures {estimate_text(one.factor)}, the parts alone say {estimate_text(one.estimated)}")
    return tuple(found)


def _cause_of(verdict: str) -> str:
    return PARTS[verdict].cause if verdict in PARTS else verdict


def _disagree(one: Estimate, other: Estimate) -> bool:
    """Return True if the intervals do not meet, or where there are none if the values are APART."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return abs(math.log(one.value / other.value)) > APART
    return one.low > other.high or one.high < other.low


# The cells of an analysis, their anchors, and the table.


Runs = Mapping[Any, Sequence[Mapping[str, object]]]
"""Source and cell_id -> the rows of the measured runs."""


def anchors_of(cells: Sequence[CellResult], runs: Runs) -> dict[int, dict[str, Estimate]]:
    """Return, by the id of a cell, what its anchors measured: a cell of the same source that agrees in all keys but one is an anchor.
    One process has none of communication: what it saves by not exchanging with itself, no network brings."""
    found: dict[int, dict[str, Estimate]] = {}
    for part, (key, value) in ANCHORS.items():
        measured = [cell for cell in cells if cell.rate is not None and (part != "communication" or cell.num_processes > 1)]
        anchors = {_all_but(cell, key): cell for cell in measured if getattr(cell.cell, key) == value}
        for cell in measured if anchors else ():
            anchor = anchors.get(_all_but(cell, key))
            if anchor is not None and anchor is not cell and anchor.rate and cell.rate:
                rows = [runs[one.source, one.cell_id] for one in (anchor, cell)]
                pair = _without_exchange(*rows) if part == "communication" else None
                found.setdefault(id(cell), {})[part] = ratio(*pair or (anchor.rate, cell.rate))
    return found


def _without_exchange(anchor: Sequence[Mapping[str, Any]], cell: Sequence[Mapping[str, Any]]) -> tuple[LogSample, LogSample] | None:
    """Return two samples whose ratio is what an exchange without time brings; None where a run does not tell the parts.

    Ranks that exchange nothing do not wait for each other, as they do with the fastest network, so the rates of the two cells say too
    much: of eight ranks that vary by a tenth 9 % (tests/workflow/report/test_what_if_simulated.py). The step without exposed communication
    is that of the cell, in which ranks wait. Of the anchor is taken how much faster a rank works when nothing is exchanged beside it; all
    of its step is work, as what the hook of an exchange copies is.
    """
    above = [1 / run["part_step_s"] if run["part_step_s"] else 0.0 for run in anchor]
    below = [_unexposed_rate(run) for run in cell]
    if not all((*above, *below)):
        return None
    return log_sample(above, [run["repeat"] for run in anchor]), log_sample(below, [run["repeat"] for run in cell])


def _unexposed_rate(run: Mapping[str, Any]) -> float:
    """Return the share of the step without exposed communication, over the own work of a rank, in 1/s; 0 where that is not told."""
    told: list[float | None] = [run[name] for name in ("part_step_s", "part_exposed_s", "part_skew_s", "if_step_s", "if_no_exposed_s")]
    step_s, exposed_s, skew_s, whole_s, left_s = (0.0 if seconds is None else seconds for seconds in told)
    own_s = step_s - exposed_s - skew_s
    return left_s / whole_s / own_s if None not in told and whole_s and own_s > 0 else 0.0


def _all_but(cell: CellResult, key: str) -> tuple[str, bytes]:
    keys = {name: value for name, value in cell.cell.to_json().items() if name not in ("cell_id", key)}
    return cell.source, canonical_json(keys)


def is_anchor(cell: CellResult) -> bool:
    """Return True if the cell is there to measure what a part costs, and trains nothing of use."""
    return any(getattr(cell.cell, key) == value for key, value in ANCHORS.values())


OF_RUNS: Final = "source cell_id repeat if_step_s slow_part straggler_rank hosts gpus_per_node num_processes mode"
OF_LOAD: Final = "part_step_s part_exposed_s part_skew_s io_wait_ratio faults_per_s gpu_busy_ratio"
OF_A_RUN: Final = (*f"{OF_RUNS} {OF_LOAD}".split(), *(part.column for part in PARTS.values()))
OF_NO_EXCHANGE: Final = Bound(
    verdict="not known", notes=("an anchor, not judged itself: its ranks exchange nothing, and do not wait for each other",)
)


def judged(analysis: Analysis) -> list[tuple[CellResult, Bound]]:
    """Return what bounds each cell with a measured run; nothing where no record tells of it."""
    frame = analysis.frame.filter(MEASURED)
    if frame["if_step_s"].count() == 0:
        return []
    runs = frame.select(OF_A_RUN).rows_by_key(["source", "cell_id"], named=True)
    anchors, parts = anchors_of(analysis.cells, runs), mean_parts(analysis)
    found = []
    for cell in analysis.cells:
        if rows := runs.get((cell.source, cell.cell_id)):
            bound = OF_NO_EXCHANGE if cell.cell.comm_hook == NO_EXCHANGE else bound_of(rows, anchors.get(id(cell)))
            note = _network_words(cell, parts.get((cell.source, cell.cell_id))) if bound.verdict == "communication" else ""
            found.append((cell, replace(bound, notes=(note, *bound.notes)) if note else bound))
    return found


def _network_words(cell: CellResult, row: Parts | None) -> str:
    """Say how long the exchange must take by the network's rate; empty where that is not known."""
    sent, of_node, least_s = (None, None, None) if row is None else (sent_bytes(cell, row), node_bytes(cell, row), network_s(cell, row))
    if row is None or sent is None or of_node is None or least_s is None:
        return ""
    least = "" if cell.cell.gpus_per_node == 1 else f", and a node {scaled(MEGA, of_node)} MB or more to others"
    return (
        f"each process sends {scaled(MEGA, sent)} MB in a step{least}, which take {scaled(MILLI, least_s)} ms or more at the "
        f"{significant(row['network_mbit'])} Mbit/s between nodes that the preflight measured; "
        f"{scaled(MILLI, row['exposed_s'])} ms of the exchange are exposed"
    )


def bounds(analysis: Analysis) -> Table:
    """Build the table of what bounds each cell, and of what the removal of each part would bring."""
    found = judged(analysis)
    cells, made = [cell for cell, _ in found], [bound for _, bound in found]
    columns = [
        words("bound", "Bound by", [one.verdict for one in made]),
        numbers("share", "Share of the step", _share_text, made, raw=lambda one: one.share),
        Column(key="share_low", title="From", values=[one.low for one in made], show=percent, stated=True),
        Column(key="share_high", title="To", values=[one.high for one in made], show=percent, stated=True),
        *[estimates(f"no_{name}_factor", part.title, [_factor(one, name) for one in made]) for name, part in PARTS.items()],
        estimates("rate_without_per_s", "Rate without it", [_rate_without(*one) for one in found]),
        words("basis", "Basis", [_basis(one) for one in made]),
        words("note", "Note", ["; ".join(one.notes) for one in made], wrap=True),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="bounds",
        title="What bounds it",
        caption=[
            f"Bound by: the part of a step with the largest share, if that is {percent(MIN_SHARE, 0)} or more, else compute. No ...: how "
            "many times as fast the cell would be at most without that part, made of the parts of its steps (estimate), or measured by a "
            "cell of the study that has none of it (anchor). [from, to] is the 95 % confidence interval over runs"
        ],
        empty="No record reports the parts of its steps.",
    )


def _share_text(one: Bound) -> str:
    if one is None or one.share is None:
        return NONE
    return f"{percent(one.share, 0)}{_ends(one.low, one.high, lambda share: significant(100 * share, 2))}"


def _ends(low: float | None, high: float | None, show: Any) -> str:
    return "" if low is None or high is None else f" [{show(low)}, {show(high)}]"


def _factor(one: Bound, part: str) -> Estimate | None:
    return one.gains[part].factor if part in one.gains else None


def _rate_without(cell: CellResult, bound: Bound) -> Estimate | None:
    gain, rate = bound.gains.get(bound.verdict), cell.rate_per_s
    return None if gain is None or rate is None else gain.factor.scaled(rate.value)


def _basis(one: Bound) -> str:
    by_anchor = [part for part, gain in one.gains.items() if gain.is_anchor]
    return "" if not one.gains else f"anchor ({', '.join(by_anchor)}), else estimate" if by_anchor else "estimate"


# One sentence for each series, by which somebody can act.


NO_COMPRESSION: Final = "an exchange that takes no time, nor its compression,"
TWICE: Final = "processors twice as fast"


def advice(analysis: Analysis) -> list[str]:
    """Return for each line of the study what bounds it at its largest size, what can be gained there, and where the bound changes."""
    found = {id(cell): bound for cell, bound in judged(analysis) if not is_anchor(cell)}
    sentences = []
    for line, comparisons in analysis.lines.items():
        known = sorted((one for one in comparisons if id(one.cell) in found), key=lambda one: one.cell.shape)
        if known:
            label = line_label(analysis, known[-1], line)
            sentences.append(printable(f"{label}: {_advice(analysis, known, [found[id(one.cell)] for one in known])}"))
    return list(dict.fromkeys(sentences))


def _advice(analysis: Analysis, known: Sequence[Comparison], bounds: Sequence[Bound]) -> str:
    cell, last = known[-1].cell, bounds[-1]
    where = f"at {counted_shape(analysis, cell)}"
    if last.share is None:
        return f"what bounds it {where} is not known: {'; '.join(last.notes)}."
    if last.verdict == "compute":
        gains = [f"{TWICE} would bring at most +{percent(1 / (1 - last.share / 2) - 1, 0)}"]
        told = sorted(last.gains, key=lambda part: -last.gains[part].factor.value)[:2]
    else:
        gains, told = [], [last.verdict]
    if "communication" in last.gains and cell.num_processes > 1 and "communication" not in told:
        told.append("communication")  # whether a faster network would help is asked of every machine
    for part in told:
        compressed = part == "communication" and cell.cell.comm_hook != "none"
        remedy = NO_COMPRESSION if compressed else PARTS[part].remedy
        gains.append(f"{remedy}{'' if gains else ' would bring'} {_gain_text(last.gains[part])}")
    changes = [
        f"{_cause_of(bound.verdict)} from {counted_shape(analysis, one.cell)} on"
        for one, bound, before in zip(known, bounds, [None, *bounds], strict=False)
        if before is None or bound.verdict != before.verdict
    ]
    found = [f"{where} it is bound by {_cause_of(last.verdict)} ({_share_text(last)} of the step). {_capital(', '.join(gains))}."]
    if len(changes) > 1:
        found.append(f"The bound changes: {', '.join(changes)}.")
    return " ".join([*found, *[f"{_capital(note)}." for note in last.notes]])


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _gain_text(gain: Gain) -> str:
    """Format a gain, such as `at most +12 % [8, 16] (computed)`, or by an anchor `(measured)`."""
    ends = _ends(gain.factor.low, gain.factor.high, lambda end: f"{100 * (end - 1):.0f}")
    return f"at most +{100 * (gain.factor.value - 1):.0f} %{ends} ({'measured' if gain.is_anchor else 'computed'})"
