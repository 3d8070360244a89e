"""How often `slipway compare` finds a difference that is not there, and how often it finds one that is: simulated, by its own functions.

    python -m benchmarks.compare [--trials 4000]

The runs of a cell have a standard deviation of 1 % (and 3 %), normal, or with heavy tails (Student's t with 3 degrees of freedom); two
studies are compared that share nothing. Printed: the share of comparisons with a claim where both are the same (A/A; of 20 cells: with any
claim), of a slowdown of 3 % that is found, of intervals that hold the true ratio, and of margins of 2 % that hold: where there is no
difference, and where B is slower by just the margin. Aims: A/A at most 5 %; the slowdown of 3 % found in 80 % with at most 10 runs at 1 %;
intervals hold 95 % of normal runs; a margin that is just missed holds in at most 5 %. Exit code 1 where an aim is missed by more than
chance leaves (three standard errors).
"""

import argparse
import math
import sys
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from extras.compare.statistics import Difference, differences, not_slower
from workflow.report.cells import LogSample

Array = npt.NDArray[np.float64]
Spread = Callable[[np.random.Generator, int], Array]
RUNS: Final = (3, 4, 5, 7, 10)
SLOWDOWN: Final = 0.03
MARGIN: Final = 0.02
MAX_FALSE: Final = 0.05
POWER: Final = 0.8
HELD: Final = 0.95
TAILS: Final = 3
CELLS: Final = 20


def normal(dice: np.random.Generator, n: int) -> Array:
    """Return deviations of standard deviation 1."""
    return dice.normal(0, 1, n)


def heavy(dice: np.random.Generator, n: int) -> Array:
    """Return deviations of standard deviation 1, some of them far out."""
    found: Array = dice.standard_t(TAILS, n) / math.sqrt(TAILS / (TAILS - 2))
    return found


SPREADS: Final[dict[str, Spread]] = {"normal": normal, "heavy tails": heavy}


def sample(dice: np.random.Generator, spread: Spread, sd: float, n: int, slower: float = 0.0) -> LogSample:
    """Return `n` runs of a cell of which the rate is lower by `slower`."""
    logs = math.log1p(-slower) + sd * spread(dice, n)
    return LogSample(n=n, mean=float(logs.mean()), variance=float(logs.var(ddof=1)))


def compared(dice: np.random.Generator, spread: Spread, sd: float, n: int, slower: float = 0.0) -> Difference:
    """Compare one cell of two studies."""
    return differences([(sample(dice, spread, sd, n), sample(dice, spread, sd, n, slower))], [""])[0]


def claims(found: Difference) -> bool:
    return found.verdict in ("slower", "faster")


def holds(found: Difference, truth: float) -> bool:
    """Return whether the interval holds the true ratio."""
    ratio = found.ratio
    return ratio is not None and ratio.low is not None and ratio.high is not None and ratio.low <= truth <= ratio.high


def family(dice: np.random.Generator, spread: Spread, sd: float, n: int) -> bool:
    """Return whether anything is claimed of CELLS cells that are all the same in both studies."""
    pairs = [(sample(dice, spread, sd, n), sample(dice, spread, sd, n)) for _ in range(CELLS)]
    return any(map(claims, differences(pairs, [""] * CELLS)))


def keeps(found: Difference) -> bool:
    return not_slower(found.ratio, MARGIN).answer == "held"


def shares(dice: np.random.Generator, spread: Spread, sd: float, n: int, trials: int) -> dict[str, tuple[float, int]]:
    """Return each share and of how many trials it is."""
    same = [compared(dice, spread, sd, n) for _ in range(trials)]
    slow = [compared(dice, spread, sd, n, SLOWDOWN) for _ in range(trials)]
    edge = [compared(dice, spread, sd, n, MARGIN) for _ in range(trials)]
    many = max(1, trials // 10)
    return {
        "A/A": (sum(map(claims, same)) / trials, trials),
        f"A/A {CELLS} cells": (sum(family(dice, spread, sd, n) for _ in range(many)) / many, many),
        "3 % found": (sum(one.verdict == "slower" for one in slow) / trials, trials),
        "covered": (sum(holds(one, 1 - SLOWDOWN) for one in slow) / trials, trials),
        "held, same": (sum(map(keeps, same)) / trials, trials),
        "held, 2 %": (sum(map(keeps, edge)) / trials, trials),
    }


def missed(name: str, sd: float, n: int, found: dict[str, tuple[float, int]]) -> list[str]:
    """Return the aims that the shares miss by more than chance."""
    lines = []
    for what, (share, trials) in found.items():
        chance = 3 * math.sqrt(MAX_FALSE * (1 - MAX_FALSE) / trials)
        too_often = what.startswith("A/A") and share > MAX_FALSE + chance
        wrongly_held = what == "held, 2 %" and name == "normal" and share > MAX_FALSE + chance
        not_covered = what == "covered" and name == "normal" and share < HELD - chance
        not_found = what == "3 % found" and name == "normal" and (sd, n) == (0.01, RUNS[-1]) and share < POWER - chance
        if too_often or wrongly_held or not_covered or not_found:
            lines.append(f"{name}, sd {100 * sd:g} %, {n} runs: {what} is {100 * share:.1f} %")
    return lines


def main() -> int:
    """Print the table, and return 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000)
    trials = parser.parse_args().trials
    faults: list[str] = []
    dice = np.random.default_rng(28)
    print(f"{'runs of a cell':34} each" + "".join(f"{what:>15}" for what in shares(dice, normal, 0.01, 3, 1)))
    for name, spread in SPREADS.items():
        for sd in (0.01, 0.03):
            for n in RUNS:
                found = shares(dice, spread, sd, n, trials)
                print(f"{name + f', sd {100 * sd:g} %':34} {n:4}" + "".join(f"{100 * share:13.1f} %" for share, _ in found.values()))
                faults += missed(name, sd, n, found)
    for fault in faults:
        print(f"missed: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
