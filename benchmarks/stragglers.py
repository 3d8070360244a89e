"""How often a rank is named a straggler that is none, and how often one that is: ranks with work of their own, no exchange.

    python -m benchmarks.stragglers [--trials 200] [--steps 100]

Per line: ranks; deviation of a step's work and how much of it lasts to the next step; how often any rank is named where all are alike (but
for 1 % between ranks); how often rank 0 is named that is slower by 10, 20 and 50 %. Aim: at most 5 of 100 named where there is none. Exit
code 1 otherwise.
"""

import argparse
import math
import random
import sys
from typing import Final

from workflow.run.record.rate import straggler

RANKS: Final = (2, 8, 32)
NOISES: Final = ((0.05, 0.6), (0.1, 0.9), (0.3, 0.6))
"""(deviation of the logarithm, correlation with the step before)"""
SLOWER: Final = (1.1, 1.2, 1.5)
BETWEEN_RANKS: Final = 0.01
AIM: Final = 0.05


def named(seed: int, ranks: int, steps: int, noise: tuple[float, float], slower: float) -> int | None:
    """The straggler of one simulated window, in which rank 0 needs `slower` times as long as it would."""
    dice = random.Random(seed)
    deviation, lasting = noise
    levels = [dice.gauss(0, BETWEEN_RANKS) for _ in range(ranks)]
    levels[0] += math.log(slower)
    drift = [dice.gauss(0, deviation) for _ in range(ranks)]
    work = []
    for _ in range(steps):
        drift = [lasting * value + dice.gauss(0, deviation * math.sqrt(1 - lasting**2)) for value in drift]
        work.append([math.exp(level + value) for level, value in zip(levels, drift, strict=True)])
    return straggler(work)


def main() -> int:
    """Print all cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    worst = 0.0
    for ranks in RANKS:
        for noise in NOISES:
            alike = [named(seed, ranks, options.steps, noise, 1.0) for seed in range(options.trials)]
            false = sum(rank is not None for rank in alike) / options.trials
            found = [sum(named(seed, ranks, options.steps, noise, slower) == 0 for seed in range(options.trials)) for slower in SLOWER]
            shown = ", ".join(f"{slower - 1:.0%}: {count / options.trials:.0%}" for slower, count in zip(SLOWER, found, strict=True))
            print(
                f"{ranks:3} ranks, noise {noise[0]:.0%}, lasting {noise[1]:.1f}: named without cause {false:.1%}; found {shown}", flush=True
            )
            worst = max(worst, false)
    print(f"named without cause at most {worst:.1%}, aim {AIM:.0%}")
    return int(worst > AIM)


if __name__ == "__main__":
    sys.exit(main())
