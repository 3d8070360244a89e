"""How true the printed rate is: synthetic event files of windows whose samples and wall time are known by construction.

    python -m benchmarks.rate [--steps 200] [--ranks 8 32]

One line per case: the true rate, the record's, what global batch / median step would have said, the cause that the record names, and the
straggler. Aim: the record's rate within 1 % of the true one in every case, and no rank named that is not slow. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workflow.run.events import read_events
from workflow.run.performance import performance

BATCH: Final = 4
"""Of each rank."""
STEP_S: Final = 0.1
WARMUP: Final = 10
BARRIER_S: Final = 0.001
AIM: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a rank does in a step: waiting for its batch, computing until its gradients are there, and after the exchange the update."""

    input_s: float = 0.0
    work_s: float = STEP_S
    after_s: float = 0.0


Script = Callable[[random.Random, int, int], Moment]
"""(dice of the step, the same for all ranks; step; rank) -> what the rank does."""


def simulate(directory: Path, script: Script, ranks: int, steps: int, mode: str = "train") -> float:
    """Write `events-<rank>.jsonl` for `steps` measured steps after a warm-up; the true rate: samples / (last end - last begin) of all
    ranks, in inference the sum of samples / (end - begin) of each. Every two ranks are a node, with a clock of its own."""
    clocks = [random.Random(f"clock {rank // 2}").randrange(10**15) for rank in range(ranks)]
    ends = [0.0] * ranks
    begins = list(ends)
    files = [(directory / f"events-{rank}.jsonl").open("w", encoding="utf-8") for rank in range(ranks)]
    for step in range(WARMUP + steps):
        if step == WARMUP:
            barrier = max(ends)  # before the window: ranks leave it within a millisecond
            ends = [barrier + random.Random(f"barrier {rank}").uniform(0, BARRIER_S) for rank in range(ranks)]
            begins = list(ends)
        todo = [script(random.Random(step), step, rank) for rank in range(ranks)]
        ready = [end + moment.input_s + moment.work_s for end, moment in zip(ends, todo, strict=True)]
        common = max(ready)
        for rank, moment in enumerate(todo):
            left = common if mode == "train" else ready[rank]
            end = left + moment.after_s
            line = {
                "event": "step", "monotonic_ns": clocks[rank] + round(1e9 * end), "step": step, "measured": step >= WARMUP,
                "seconds": end - ends[rank], "input_s": moment.input_s, "exchange_s": left - ready[rank], "samples": BATCH, "loss": 1.0,
            }  # fmt: skip
            files[rank].write(json.dumps(line) + "\n")
            ends[rank] = end
    for file in files:
        file.close()
    if mode == "train":
        return ranks * BATCH * steps / (max(ends) - max(begins))
    return sum(BATCH * steps / (end - begin) for begin, end in zip(begins, ends, strict=True))


def even(_dice: random.Random, _step: int, _rank: int) -> Moment:
    """All steps alike."""
    return Moment()


def bunched(_dice: random.Random, step: int, _rank: int) -> Moment:
    """Batches come four at a time, and the ranks wait for them."""
    return Moment(input_s=0.7 if step % 4 == 0 else 0.0, work_s=STEP_S)


def stalling(dice: random.Random, _step: int, rank: int) -> Moment:
    """Each rank stalls for a second in 2 % of its steps."""
    stalls = [dice.random() < 0.02 for _ in range(rank + 1)]
    return Moment(work_s=STEP_S + (1.0 if stalls[-1] else 0.0))


def network(dice: random.Random, _step: int, _rank: int) -> Moment:
    """Now and then the exchange stalls, for all ranks alike."""
    return Moment(after_s=1.0 if dice.random() < 0.02 else 0.0)


def jitter(_dice: random.Random, step: int, rank: int) -> Moment:
    """Ranks lose time after the exchange, each at its own moments."""
    return Moment(after_s=random.Random(f"{step} {rank}").uniform(0, 0.4 * STEP_S))


def straggler(_dice: random.Random, step: int, rank: int) -> Moment:
    """Rank 2 needs 30 % more for every step."""
    noise = random.Random(f"{step} {rank}").gauss(1, 0.02)
    return Moment(work_s=STEP_S * noise * (1.3 if rank == 2 else 1.0))


def uneven(_dice: random.Random, step: int, rank: int) -> Moment:
    """All ranks are alike on the average, and each is now faster and now slower: a log-normal deviation of 30 %."""
    return Moment(work_s=STEP_S * random.Random(f"{step} {rank}").lognormvariate(0, 0.3))


def slow_rank(_dice: random.Random, _step: int, rank: int) -> Moment:
    """Rank 0 takes twice as long, and nobody waits for it."""
    return Moment(work_s=STEP_S * (2 if rank == 0 else 1))


CASES: Final[dict[str, tuple[Script, str, str | None, int | None]]] = {
    "even steps": (even, "train", None, None),
    "bunched input": (bunched, "train", "input", None),
    "2 % stalls of 1 s": (stalling, "train", "stragglers", None),
    "stalls of the exchange": (network, "train", "stalls", None),
    "jitter after the exchange": (jitter, "train", "stragglers", None),
    "one straggler": (straggler, "train", None, 2),
    "uneven ranks": (uneven, "train", None, None),
    "inference, one slow rank": (slow_rank, "infer", "stragglers", 0),
}
"""What happens, the mode, the cause and the straggler that the record must name with 8 ranks."""


def measure(script: Script, ranks: int, steps: int, mode: str) -> tuple[float, dict[str, Any]]:
    """(true rate, the record's `performance`)."""
    with tempfile.TemporaryDirectory() as directory:
        truth = simulate(Path(directory), script, ranks, steps, mode)
        found = performance(read_events(Path(directory), ranks), ranks, ranks * BATCH, mode)
    assert found is not None
    return truth, found


def main() -> int:
    """Print all cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32])
    options = parser.parse_args()
    worst, named = 0.0, 0
    print(f"{'ranks':>5}  {'case':26} {'true/s':>9} {'record/s':>9} {'error':>8} {'by median':>10}  cause, straggler")
    for ranks in options.ranks:
        for name, (script, mode, _, slow) in CASES.items():
            truth, found = measure(script, ranks, options.steps, mode)
            error = found["samples_per_s"] / truth - 1
            by_median = ranks * BATCH / found["step_s"]["p50"] / truth - 1
            worst = max(worst, abs(error))
            named += found["straggler_rank"] != slow
            said = f"{found['uneven_cause']}, {found['straggler_rank']}"
            print(f"{ranks:5}  {name:26} {truth:9.2f} {found['samples_per_s']:9.2f} {error:8.3%} {by_median:10.1%}  {said}")
    print(f"largest error of a rate {worst:.3%}, aim {AIM:.0%}; stragglers named wrongly {named}, aim 0")
    return int(worst > AIM or named > 0)


if __name__ == "__main__":
    sys.exit(main())
