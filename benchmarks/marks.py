"""How often a mark is false, what it finds, and how often an interval holds the truth: simulated, with the code that makes the tables.

    python -m benchmarks.marks [--trials 2000] [--only intervals best curves drift early counts]

Marks that are tests (`drift`, `superlinear`, `rising`): share of cells marked where there is nothing to find, and where there is; `early`
is what `drift` says of the first steps of a window.
Intervals: share that holds the truth, with and without what nodes have in common; of the best speed-up of many. Aim: at most 5 % false, at
least 95 % held, but where all runs are on the same nodes. Marks of wrong counts: share of runs of programs with clocks of their own; aim:
no wrong rate without a mark, and no mark where a program reports what it does. Exit code 1 where an aim is missed by more than chance
leaves (three standard errors).
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.counts import AIM, PROGRAMS, REPORTING, measure
from tests.workflow.report.builder import cell_result, log_sample, make_cell
from workflow.report.cells import Estimate, drift_sums, drifts, geometric_mean, ratio
from workflow.report.speedup import compare_to_baseline
from workflow.run.record.rate import drift, early

Array = npt.NDArray[np.float64]
Steps = Callable[[np.random.Generator, int], Array]
"""(dice, number of steps) -> seconds of each."""

FALSE: Final = 0.05
MAX_PROGRAMS: Final = 200
RUNS: Final = (2, 3, 5, 10)
DEVIATIONS: Final = (0.01, 0.02, 0.05, 0.1)


def lognormal(spread: float, rho: float) -> Steps:
    """Steps whose logarithms are an AR(1) with correlation `rho` of neighbours."""

    def steps(dice: np.random.Generator, count: int) -> Array:
        fresh = dice.normal(0, spread * math.sqrt(1 - rho * rho), count)
        series = np.empty(count)
        series[0] = fresh[0] / math.sqrt(1 - rho * rho)
        for step in range(1, count):
            series[step] = rho * series[step - 1] + fresh[step]
        return np.exp(series)

    return steps


def bunched(period: int, *, anywhere: bool) -> Steps:
    """Input that comes so many batches at a time: one long step, then short ones; beginning anywhere, or alike in all runs."""

    def steps(dice: np.random.Generator, count: int) -> Array:
        place = np.arange(count) + (dice.integers(period) if anywhere else 0)
        return np.where(place % period == period - 1, 0.5, 0.01) * np.exp(dice.normal(0, 0.05, count))

    return steps


def two_speeds(dice: np.random.Generator, count: int) -> Array:
    """A machine that is 10 % slower for a while, now and then: 20 steps on average."""
    factor: Array = np.exp(dice.normal(0, 0.02, count)) * (1 + 0.1 * (np.cumsum(dice.random(count) < 0.05) % 2))
    return factor


def stalling(dice: np.random.Generator, count: int) -> Array:
    """Two steps of a hundred last ten times as long."""
    factor: Array = np.exp(dice.normal(0, 0.05, count)) + 10.0 * (dice.random(count) < 0.02)
    return factor


MODELS: Final[dict[str, Steps]] = {
    "independent, 2 %": lognormal(0.02, 0.0),
    "independent, 5 %": lognormal(0.05, 0.0),
    "AR(1) 0.5, 5 %": lognormal(0.05, 0.5),
    "AR(1) 0.9, 5 %": lognormal(0.05, 0.9),
    "AR(1) 0.95, 5 %": lognormal(0.05, 0.95),
    "AR(1) 0.9, 1 %": lognormal(0.01, 0.9),
    "bunched input, 16": bunched(16, anywhere=True),
    "the same in all runs": bunched(16, anywhere=False),
    "bunched input, 64, the same": bunched(64, anywhere=False),
    "two speeds": two_speeds,
    "stalls": stalling,
}


class Book:
    """Prints the lines, and remembers the aims that were missed."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def line(
        self, what: str, shares: Sequence[float], trials: Sequence[int], most: float | None = None, least: float | None = None
    ) -> None:
        """`most`, `least`: the aim, None where there is none."""
        print(f"  {what:44}" + "".join(f"{100 * share:8.1f} %" for share in shares))
        for share, count in zip(shares, trials, strict=True):
            slack = 3 * math.sqrt(FALSE * (1 - FALSE) / count)
            if (most is not None and share > most + slack) or (least is not None and share < least - slack):
                self.missed.append(f"{what}: {100 * share:.1f} %")


def drift_row(seconds: Array) -> dict[str, Any]:
    """The columns of a run that the test reads."""
    steps = seconds.tolist()
    found = drift(steps)
    columns = {f"drift_{name}": getattr(found, name) if found else None for name in ("change_ratio", "others_ratio")}
    last_half, first_steps = early(steps) or (None, None)
    return {"measured": True, "last_half_ratio": last_half, "first_steps_ratio": first_steps, **columns}


def share_drifting(rows: Sequence[dict[str, Any]], runs: int) -> float:
    """Share of cells of so many runs that are marked."""
    schema = {"measured": pl.Boolean(), "drift_change_ratio": pl.Float64()}
    schema |= {"drift_others_ratio": pl.List(pl.Float64()), "last_half_ratio": pl.Float64(), "first_steps_ratio": pl.Float64()}
    frame = pl.DataFrame(rows[: len(rows) // runs * runs], schema=schema).with_row_index("cell")
    cells = frame.group_by(pl.col("cell") // runs).agg(drift_sums(pl.col("measured")))
    return sum(map(drifts, cells.iter_rows(named=True))) / cells.height


def drift_lines(book: Book, trials: int) -> None:
    """Cells without a drift, then with one of 3 % from the begin of the window to its end."""
    for ramp in (0.0, 0.03):
        print(f"drift: cells marked, of a ramp of {100 * ramp:.0f} %; runs of a cell: 1, {', '.join(map(str, RUNS))}")
        for name, model in MODELS.items():
            for window in (20, 50, 100, 200, 1000):
                dice = np.random.default_rng(window)
                line = 1 + ramp * (np.arange(window) + 0.5) / window
                rows = [drift_row(model(dice, window) * line) for _ in range(trials)]
                shares = [share_drifting(rows, runs) for runs in (1, *RUNS)]
                book.line(f"{name}, {window} steps", shares, [trials // runs for runs in (1, *RUNS)], most=None if ramp else FALSE)


def early_lines(book: Book, trials: int) -> None:
    """Cells whose runs have no short first steps, by the whole mark; then with so many that took no time, or a quarter less."""
    cases = [(None, 1.0), (0.03, 0.01), (0.05, 0.01), (0.3, 0.01), (0.2, 0.75)]
    for share, speed in cases:
        words = (
            "no short first steps" if share is None else f"{100 * share:.0f} % of the steps, the first, of {100 * speed:.0f} % of the time"
        )
        print(f"early: cells marked, {words}; runs of a cell: 1, {', '.join(map(str, RUNS))}")
        for name, model in MODELS.items():
            for window in (20, 50, 100, 200, 1000):
                dice = np.random.default_rng(window)
                first = np.where(np.arange(window) < (share or 0) * window, speed, 1.0)
                rows = [drift_row(model(dice, window) * first) for _ in range(trials)]
                shares = [share_drifting(rows, runs) for runs in (1, *RUNS)]
                counts = [trials // runs for runs in (1, *RUNS)]
                book.line(f"{name}, {window} steps", shares, counts, most=FALSE if share is None else None)


def samples(dice: np.random.Generator, deviation: float, runs: int, mean: float = 1.0) -> list[float]:
    """The rates of some runs."""
    return [float(value) for value in mean * np.exp(dice.normal(0, deviation, runs))]


def share_marked(mark: str, efficiencies: Sequence[float], deviation: float, runs: int, trials: int) -> float:
    """Share of the last cell's comparisons that carry `mark`; cells of 1, 2, 4 ... processes with these true efficiencies, the first is
    the baseline."""
    dice = np.random.default_rng([runs, round(1000 * deviation)])
    cells = [make_cell(nodes=2**place) for place in range(len(efficiencies))]
    marked = 0
    for _ in range(trials):
        found = [
            cell_result(cell, [cell["global_batch_size"] / rate for rate in samples(dice, deviation, runs, efficiency * cell["nodes"])])
            for cell, efficiency in zip(cells, efficiencies, strict=True)
        ]
        marked += mark in compare_to_baseline(found, {"nodes": 1})[-1].marks
    return marked / trials


def curve_lines(book: Book, trials: int) -> None:
    """superlinear and rising, where nothing is there, at the limit, and with 10 %."""
    cases: dict[str, list[tuple[float, ...]]] = {
        "superlinear": [(1.0, 1.0), (1.0, 1.03), (1.0, 1.1), (1.0, 1.2)],
        "rising": [(1.0, 0.8, 0.8), (1.0, 0.8, 0.824), (1.0, 0.8, 0.88), (1.0, 0.8, 0.96)],
    }
    for mark, curves in cases.items():
        for curve in curves:
            change = curve[-1] / curve[-2]
            print(f"{mark}: cells marked, a process {100 * change - 100:+.1f} % as fast; runs of a cell: {', '.join(map(str, RUNS))}")
            for deviation in DEVIATIONS:
                shares = [share_marked(mark, curve, deviation, runs, trials) for runs in RUNS]
                book.line(f"run deviation {100 * deviation:.0f} %", shares, [trials] * len(RUNS), most=FALSE if change < 1.0301 else None)


def coverage(estimates: Iterable[Estimate], truth: float = 1.0) -> float:
    """Share of the intervals that hold the truth."""
    held = [one.low is not None and one.high is not None and one.low <= truth <= one.high for one in estimates]
    return sum(held) / len(held)


def interval_lines(book: Book, trials: int) -> None:
    """A cell and a speed-up whose runs have only their own deviation; then with one of the nodes, as large as that of the runs."""
    runs_of = (3, 5, 10)
    print(f"intervals that hold the truth; runs of a cell: {', '.join(map(str, runs_of))}")
    dice = np.random.default_rng(1)
    for deviation in DEVIATIONS:
        cells = [[samples(dice, deviation, runs) for _ in range(trials)] for runs in runs_of]
        shares = [coverage(geometric_mean(log_sample(rates)) for rates in found) for found in cells]
        book.line(f"a cell, run deviation {100 * deviation:.0f} %", shares, [trials] * 3, least=0.95)
        pairs = [[(samples(dice, deviation, runs), samples(dice, 2 * deviation, runs)) for _ in range(trials)] for runs in runs_of]
        shares = [coverage(ratio(log_sample(above), log_sample(below)) for above, below in found) for found in pairs]
        book.line(f"a speed-up, {100 * deviation:.0f} % against {200 * deviation:.0f} %", shares, [trials] * 3, least=0.94)
    block_lines(book, trials)
    for node in (0.5, 1.0, 2.0):
        for places, words in ((1, "all on the same nodes"), (0, "each on other nodes")):
            shares = []
            for runs in runs_of:
                effects = np.repeat(dice.normal(0, node * 0.02, (trials, places or runs)), runs if places else 1, axis=1)
                rates = np.exp(dice.normal(0, 0.02, (trials, runs)) + effects)
                shares.append(coverage(geometric_mean(log_sample(row)) for row in rates.tolist()))
            book.line(f"nodes deviate {node:g} x runs, {words}", shares, [trials] * 3, least=None if places else 0.95)


def block_lines(book: Book, trials: int) -> None:
    """A cell that is 8 % faster than its baseline, where the state of the machine deviates from block to block: the interval of the tables,
    which is paired, and for comparison Welch's."""
    runs_of, truth = (3, 5, 10), 1.08
    dice = np.random.default_rng(2)
    for block in (0.0, 0.02, 0.05):
        for deviation in (0.01, 0.02, 0.05):
            found: dict[str, list[list[Estimate]]] = {"paired": [], "Welch": []}
            for runs in runs_of:
                states = dice.normal(0, block, (trials, 1, runs)) + dice.normal(0, deviation, (trials, 2, runs))
                pairs = [tuple(map(log_sample, pair)) for pair in np.exp(states).tolist()]
                found["paired"].append([ratio(cell, base).scaled(truth) for cell, base in pairs])
                found["Welch"].append([ratio(replace(cell, by_block=()), base).scaled(truth) for cell, base in pairs])
            for method, estimates in found.items():
                words = f"{method}, blocks {100 * block:.0f} %, runs {100 * deviation:.0f} %"
                shares = [coverage(those, truth) for those in estimates]
                book.line(f"a speed-up, {words}", shares, [trials] * 3, least=0.95)
                seen = [sum(one.low is not None and one.low > 1 for one in those) / trials for those in estimates]
                book.line("  seen to be above 1", seen, [trials] * 3)


def best_lines(book: Book, trials: int) -> None:
    """The largest of k speed-ups that are all 1, against one baseline: its own interval, and the one that the page shows."""
    runs_of = (3, 5, 10)
    print(f"intervals of the largest of k speed-ups that hold the truth; runs of a cell: {', '.join(map(str, runs_of))}")
    for count in (2, 4, 8, 16):
        own, among = [], []
        for runs in runs_of:
            dice = np.random.default_rng(count * runs)
            best = []
            for _ in range(trials):
                base = log_sample(samples(dice, 0.02, runs))
                best.append(max((ratio(log_sample(samples(dice, 0.02, runs)), base) for _ in range(count)), key=lambda one: one.value))
            own.append(coverage(best))
            among.append(coverage(one.among(count) for one in best))
        book.line(f"k = {count}, its own interval", own, [trials] * 3)
        book.line(f"k = {count}, the page's interval", among, [trials] * 3, least=0.95)


def count_lines(book: Book, trials: int) -> None:
    """Programs that count their steps and samples in other ways than one expects, and some that report what they do."""
    print(f"counts: runs whose rate is more than {100 * AIM:.0f} % wrong; of these without a mark; marked; marked assumed")
    for program in PROGRAMS:
        found = [measure(program, seed) for seed in range(min(trials, MAX_PROGRAMS))]
        wrong = [marks for error, marks in found if abs(error) > AIM]
        marked = [marks for _, marks in found if marks]
        assumed = [marks for marks in marked if "assumed" in marks]
        shares = [len(runs) / len(found) for runs in (wrong, [marks for marks in wrong if not marks], marked, assumed)]
        book.line(program.__name__.replace("_", " "), shares, [len(found)] * len(shares))
        if not all(wrong) or (marked and program in REPORTING):
            book.missed.append(program.__name__)


LINES: Final = {
    "intervals": interval_lines,
    "best": best_lines,
    "curves": curve_lines,
    "drift": drift_lines,
    "early": early_lines,
    "counts": count_lines,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print everything; 1 where an aim is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.marks", description="False alarms and power of the marks, coverage of the intervals.")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=LINES, default=list(LINES))
    asked = parser.parse_args(argv)
    book = Book()
    for name in asked.only:
        LINES[name](book, asked.trials)
    print("aims missed: " + ("; ".join(book.missed) or "none"))
    return 1 if book.missed else 0


if __name__ == "__main__":
    sys.exit(main())
