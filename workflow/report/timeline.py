"""Draw the runs of a study over the clock: the steps of each, how long it waited for nodes, and for which run it waited."""

from __future__ import annotations

import html
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from base.humanize import counted, whole_duration
from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.cell_columns import SEPARATOR, cell_label
from workflow.report.formats import STEPS

WIDTH: Final = 1180
LEFT: Final = 270
RIGHT: Final = 20
HEAD: Final = 48
ROW: Final = 16
BAR: Final = 10
MAX_ROWS: Final = 60
MAX_TITLES: Final = 300
"""The most runs whose bars carry words; of more the steps are drawn together."""
MIN_WAIT_S: Final = 5.0
GAP_SHARE: Final = 0.05
MIN_GAP_S: Final = 60.0
CUT_SHARE: Final = 0.02
LABEL: Final = 42
MAX_WAITS: Final = 5
MIN_TICK: Final = 70
TICK_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800)
_FIRST: Final = 0.0
_LAST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
OF_RUN: Final = tuple(step for step in STEPS if step != "assign")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A run on the clock, in seconds of the epoch. `waited_s`: for nodes, before it began; `waited_for`: the place of the run among all
    that had a node of it last, None where the scheduler alone knows."""

    run_id: str
    label: str
    source: str
    hosts: tuple[str, ...]
    begin: float
    waited_s: float
    steps: tuple[tuple[str, float], ...]
    waited_for: int | None = None

    @property
    def end(self) -> float:
        return self.begin + sum(seconds for _, seconds in self.steps)


def placed_runs(analysis: Analysis) -> list[Placed]:
    """Return the attempt that counts of each run, in order of their start, each with the run that it waited for. A record may tell of
    moments that no calendar has: such a run is left out."""
    names = {(cell.source, cell.cell_id): cell_label(analysis, cell) for cell in analysis.cells}
    columns = ("source", "run_id", "cell_id", "repeat", "start", "hosts", *(f"{step}_s" for step in STEPS))
    found = []
    for row in analysis.frame.select(columns).iter_rows(named=True):
        begin = _moment(row["start"])
        if begin is None:
            continue
        run = Placed(
            run_id=printable(row["run_id"]),
            label=f"{names[row['source'], row['cell_id']]}{SEPARATOR}r{row['repeat']}",
            source=row["source"],
            hosts=tuple(filter(None, (row["hosts"] or "").split(","))),
            begin=begin,
            waited_s=row["assign_s"] or 0.0,
            steps=tuple((step, row[f"{step}_s"] or 0.0) for step in OF_RUN),
        )
        if _FIRST <= run.begin - run.waited_s <= run.end <= _LAST:
            found.append(run)
    found.sort(key=lambda run: (run.begin, run.run_id))
    return [replace(run, waited_for=cause) for run, cause in zip(found, causes(found), strict=True)]


def _moment(text: str | None) -> float | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def causes(runs: Sequence[Placed]) -> list[int | None]:
    """Return for each run the place of the one that it waited for: of those on one of its nodes the last that ended while it waited."""
    ends: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for place, run in enumerate(runs):
        for host in run.hosts:
            ends.setdefault((run.source, host), []).append((run.end, place))
    for those in ends.values():
        those.sort()
    return [_cause(run, place, ends) for place, run in enumerate(runs)]


def _cause(run: Placed, place: int, ends: Mapping[tuple[str, str], Sequence[tuple[float, int]]]) -> int | None:
    if run.waited_s < MIN_WAIT_S:
        return None
    latest: tuple[float, int] | None = None
    for host in run.hosts:
        those = ends[run.source, host]
        index = bisect_right(those, (run.begin, len(those))) - 1
        while index >= 0 and those[index][1] == place:
            index -= 1
        if index >= 0 and those[index][0] >= run.begin - run.waited_s and (latest is None or those[index] > latest):
            latest = those[index]
    return None if latest is None else latest[1]


# The picture: a row for each run, or for each first node where there are many runs. Time in which nothing ran or waited is cut out.


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A scale from moments to the picture. `spans`: start and end of each time in which something went on, and the place of its start."""

    spans: tuple[tuple[float, float, float], ...]
    per_second: float

    def x(self, moment: float) -> float:
        begin, end, at = next((span for span in reversed(self.spans) if moment >= span[0]), self.spans[0])
        return at + (min(max(moment, begin), end) - begin) * self.per_second


def clock_of(runs: Sequence[Placed]) -> Clock:
    """Return the clock of the picture, without the long times in which nothing happened."""
    busy = _joined(((run.begin - run.waited_s, run.end) for run in runs), 0.0)
    spans = _joined(busy, max(MIN_GAP_S, GAP_SHARE * sum(end - begin for begin, end in busy)))
    total = max(1.0, sum(end - begin for begin, end in spans))
    room = (WIDTH - LEFT - RIGHT) * (1 - min(0.5, CUT_SHARE * (len(spans) - 1)))
    cut = (WIDTH - LEFT - RIGHT - room) / max(1, len(spans) - 1)
    at, placed = float(LEFT), []
    for begin, end in spans:
        placed.append((begin, end, at))
        at += (end - begin) * room / total + cut
    return Clock(spans=tuple(placed), per_second=room / total)


def _joined(times: Iterable[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Join times, begin and end of each, between which there is no longer gap."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if found and begin - found[-1][1] <= gap:
            begin, end = found[-1][0], max(found.pop()[1], end)
        found.append((begin, end))
    return found


def picture_of(runs: Sequence[Placed]) -> str:
    """Draw the runs as SVG: a bar for each step, a pale one for the wait, and a line from the run that was waited for."""
    clock = clock_of(runs)
    single = len(runs) <= MAX_ROWS
    lanes = [(run.label, place) for place, run in enumerate(runs)] if single else lanes_of(runs)
    shown = lanes if single else sorted(set(lanes))[:MAX_ROWS]
    labels = [node if single or not lane else f"{node} ({lane + 1})" for node, lane in shown]
    rows = {lane: row for row, lane in enumerate(shown)}
    places = [rows.get(lane) for lane in lanes]
    height = HEAD + ROW * len(labels) + 8

    def top(row: int) -> float:
        return HEAD + ROW * row + (ROW - BAR) / 2

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The steps of the runs over time" class="gantt">']
    parts += [*_legend(), *_ticks(clock, height)]
    parts += [
        f'<text class="label" x="{LEFT - 8}" y="{top(row) + BAR - 1}" text-anchor="end">{html.escape(_cut(label))}</text>'
        for row, label in enumerate(labels)
    ]
    drawn = [(run, top(row)) for run, row in zip(runs, places, strict=True) if row is not None]
    parts += _bars(drawn, clock, lambda run: _title(run, runs))
    if single:
        links = [(cause, place) for place, run in enumerate(runs) if (cause := run.waited_for) is not None and cause < place]
        paths = [f"M{_n(clock.x(runs[cause].end))} {_n(top(cause) + BAR)}V{_n(top(place) + BAR / 2)}" for cause, place in links]
        parts.append(f'<path class="waits" stroke="{STEPS["assign"]}" d="{"".join(paths)}"/>')
    return "".join([*parts, "</svg>"])


def _bars(drawn: Sequence[tuple[Placed, float]], clock: Clock, title: Callable[[Placed], str]) -> Iterator[str]:
    """Yield the bars of each run with its words; of very many runs one path for each step."""
    alone = len(drawn) <= MAX_TITLES
    together: dict[str, list[str]] = {}
    for run, top in drawn:
        paths = {step: _bar(clock, begin, end, top) for step, begin, end in _spans(run)}
        if alone:
            inner = "".join(f'<path fill="{STEPS[step]}" d="{path}"/>' for step, path in paths.items() if path)
            yield f"<g><title>{html.escape(title(run))}</title>{inner}</g>"
        else:
            for step, path in paths.items():
                together.setdefault(step, []).append(path)
    for step, found in together.items():
        yield f'<path fill="{STEPS[step]}" d="{"".join(found)}"/>'


def _spans(run: Placed) -> Iterator[tuple[str, float, float]]:
    """Yield step, begin and end of what took time."""
    if run.waited_s > 0:
        yield "assign", run.begin - run.waited_s, run.begin
    at = run.begin
    for step, seconds in run.steps:
        if seconds > 0:
            yield step, at, at + seconds
        at += seconds


def _bar(clock: Clock, begin: float, end: float, top: float) -> str:
    left, right = clock.x(begin), clock.x(end)
    return f"M{_n(left)} {_n(top)}h{_n(max(0.4, right - left))}v{BAR}H{_n(left)}z"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def lanes_of(runs: Sequence[Placed]) -> list[tuple[str, int]]:
    """Return for each run its first node, and a number that differs where runs are on that at the same time."""
    ends: dict[str, list[float]] = {}
    found = []
    for run in runs:
        node = printable(run.hosts[0]) if run.hosts else "no node is known"
        own = ends.setdefault(node, [])
        lane = next((number for number, end in enumerate(own) if end <= run.begin), len(own))
        own[lane : lane + 1] = [run.end]
        found.append((node, lane))
    return found


def _legend() -> Iterator[str]:
    x = LEFT
    for step, colour in STEPS.items():
        words = "waits for nodes" if step == "assign" else step
        yield f'<rect x="{x}" y="2" width="{BAR}" height="{BAR}" fill="{colour}"/><text x="{x + BAR + 5}" y="11">{words}</text>'
        x += 30 + 7 * len(words)


def _ticks(clock: Clock, height: int) -> Iterator[str]:
    """Yield the marks of time: the moment at which each span begins, and how long ago that was."""
    free = 0.0
    for begin, end, at in clock.spans:
        if at > LEFT:
            yield f'<line class="cut" x1="{_n(at - 4)}" x2="{_n(at - 4)}" y1="{HEAD - 8}" y2="{height}" stroke="{STEPS["assign"]}"/>'
        moment = datetime.fromtimestamp(begin, UTC).strftime("%d %b %H:%M UTC")
        if at >= free:
            yield f'<text x="{_n(at)}" y="{HEAD - 22}">{moment}</text>'
            free = at + 120
        weeks = math.ceil(MIN_TICK / (TICK_S[-1] * clock.per_second))
        step = next((one for one in TICK_S if one * clock.per_second >= MIN_TICK), weeks * TICK_S[-1])
        for number in range(1, int((end - begin) / step) + 1):
            x = clock.x(begin + number * step)
            yield f'<text x="{_n(x)}" y="{HEAD - 6}" text-anchor="middle">+{_tick(number * step)}</text>'
            yield f'<line x1="{_n(x)}" x2="{_n(x)}" y1="{HEAD - 2}" y2="{height}" stroke="{STEPS["assign"]}" stroke-opacity="0.35"/>'


def _tick(seconds: int) -> str:
    return whole_duration(seconds).removesuffix("00s").removesuffix("00m")


def _cut(label: str) -> str:
    return label if len(label) <= LABEL else f"\N{HORIZONTAL ELLIPSIS}{label[-LABEL:]}"


# Words.


def _title(run: Placed, runs: Sequence[Placed]) -> str:
    steps = ", ".join(f"{step} {whole_duration(seconds)}" for step, seconds in run.steps if seconds >= 1)
    return f"{run.run_id} on {', '.join(run.hosts[:4]) or 'no known node'}: {steps}{_wait_words(run, runs)}"


def _wait_words(run: Placed, runs: Sequence[Placed]) -> str:
    if run.waited_s < MIN_WAIT_S:
        return ""
    what = "nodes that no run of this study had" if run.waited_for is None else runs[run.waited_for].run_id
    return f"; it waited {whole_duration(run.waited_s)} for {what}"


def sentences_of(runs: Sequence[Placed]) -> Iterator[str]:
    """Describe how long the runs took together, and which waited longest."""
    waiting = [run for run in runs if run.waited_s >= MIN_WAIT_S]
    whole = max(run.end for run in runs) - min(run.begin - run.waited_s for run in runs)
    drawn = f"{counted(len(runs), 'run')}, of each the attempt that counts"
    yield f"From the first wait to the last end {whole_duration(whole)} went by: {drawn}."
    if len(runs) > MAX_ROWS:
        rows = len(set(lanes_of(runs)))
        cut = f"; the first {MAX_ROWS} of {rows} rows" if rows > MAX_ROWS else ""
        yield f"A row is the first node of its runs; a node that several runs had at the same time has several{cut}."
    if not waiting:
        yield "No run waited for nodes."
        return
    known = sum(run.waited_for is not None for run in waiting)
    total = whole_duration(sum(run.waited_s for run in waiting))
    yield f"{counted(len(waiting), 'run')} waited for nodes, in all {total}; {known} of them for a run of this study."
    for run in sorted(waiting, key=lambda one: -one.waited_s)[:MAX_WAITS]:
        yield f"{run.run_id}{_wait_words(run, runs).removeprefix('; it')}."
