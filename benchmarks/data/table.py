"""Medians, ranges and ratios of what was measured in turns, and their lines in docs/explanation/performance.md. Pure."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Turn(NamedTuple):
    """What one contender did once: samples or bytes handled, seconds on the clock, processor seconds of all its processes."""

    amount: float
    seconds: float
    cpu_s: float


class Measured(NamedTuple):
    """A contender of a row with its turns in the order of the rounds; `missing` says why there are none."""

    label: str
    turns: tuple[Turn, ...] = ()
    missing: str = ""


class Spread(NamedTuple):
    """A median with its range."""

    median: float
    least: float
    most: float


class Unit(NamedTuple):
    """How a row is counted: by the rate of an amount, where more is better, or by seconds, where less is better."""

    name: str
    by_rate: bool
    per: float = 1.0


IMAGES = Unit("images/s", by_rate=True)
MEGABYTES = Unit("MB/s", by_rate=True, per=1e6)
SECONDS = Unit("s", by_rate=False)
HEAD = ("Row", "What", "Who", "Median", "Range", "CPU", "Slipway is", "Measured")
MACHINE = "| On which machine the last row was measured |\n|---|\n"


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the range of some values."""
    return Spread(statistics.median(values), min(values), max(values))


def figure(turn: Turn, unit: Unit) -> float:
    """Return what a turn counts in the unit of its row."""
    return turn.amount / turn.seconds / unit.per if unit.by_rate else turn.seconds


def speed_ratios(own: Sequence[Turn], peer: Sequence[Turn], unit: Unit) -> list[float]:
    """Return for each round how many times as fast as the peer Slipway was. Noise that lasts longer than a round meets both."""
    pairs = [(figure(one, unit), figure(other, unit)) for one, other in zip(own, peer, strict=False)]
    return [one / other if unit.by_rate else other / one for one, other in pairs]


def number(value: float) -> str:
    """Return a number with three digits or, from a thousand on, as a whole number."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def processor(turns: Sequence[Turn], unit: Unit) -> str:
    """Return the median of the processor time: microseconds of an image, or seconds."""
    if unit is IMAGES:
        return f"{number(statistics.median(turn.cpu_s / turn.amount for turn in turns) * 1e6)} µs"
    return f"{number(statistics.median(turn.cpu_s for turn in turns))} s"


def lines(row: tuple[str, str], unit: Unit, found: Sequence[Measured], when: str) -> list[str]:
    """Return the lines of a row, (name, title), in the table. The first contender is Slipway, with which all others are compared."""
    name, title = row
    made = []
    for place, one in enumerate(found):
        cells = ["", "", "", ""]
        if one.turns:
            median, least, most = spread([figure(turn, unit) for turn in one.turns])
            cells = [f"{number(median)} {unit.name}", f"{number(least)} to {number(most)}", processor(one.turns, unit), ""]
            if place and found[0].turns:
                ratio = spread(speed_ratios(found[0].turns, one.turns, unit))
                cells[3] = f"{number(ratio.median)} x ({number(ratio.least)} to {number(ratio.most)})"
        label = f"{one.label}: not measured, {one.missing}" if one.missing else one.label
        made.append("| " + " | ".join([name, "" if place else title, label, *cells, when]) + " |")
    return made


def name_of(line: str) -> str:
    """Return the row to which a line of the table belongs."""
    return line.split("|")[1].strip()


def merged(old: Sequence[str], new: Sequence[str], order: Sequence[str]) -> list[str]:
    """Return the lines of the table where the rows measured now take the place of what was there; rows stand in the given order."""
    again = {name_of(line) for line in new}
    kept = [line for line in old if name_of(line) not in again and name_of(line) in order]
    return sorted([*kept, *new], key=lambda line: order.index(name_of(line)))


def with_table(text: str, new: Sequence[str], order: Sequence[str], machine: str) -> str:
    """Return a document in which the table that begins with HEAD holds these lines too, and the machine is this one. Raises
    ValueError where it has no such table.
    """
    head = "| " + " | ".join(HEAD) + " |"
    above, found, rest = text.partition(head + "\n")
    if not found:
        raise ValueError(f"no table begins with {head!r}")
    ruler, *body = rest.split("\n")
    end = next((place for place, line in enumerate(body) if not line.startswith("|")), len(body))
    before, there, after = above.partition(MACHINE)
    if there:
        above = f"{before}{MACHINE}| {machine} |\n" + after.partition("\n")[2]
    return above + "\n".join([head, ruler, *merged(body[:end], new, order), *body[end:]])


def as_table(new: Sequence[str]) -> str:
    """Return the lines as a whole table."""
    return "\n".join(["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|", *new])
