"""How true the printed rate is: synthetic event files of windows whose samples and wall time are known by construction.

    python -m benchmarks.rate [--steps 200] [--ranks 8 32]

One line per case: the true rate, the record's, what global batch / median step would have said, the cause that the record names, and the
straggler. Aim: the record's rate within 1 % of the true one in every case, and no rank named that is not slow. Exit code 1 otherwise.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workflow.run.record.events import read_events
from workflow.run.record.model import Performance
from workflow.run.record.rate import performance

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


@dataclass(frozen=True, kw_only=True)
class Case:
    """`cause` and `straggler`: what the record must name with 8 ranks. `barrier`: whether ranks begin the window together, within
    BARRIER_S. `late`: by how many steps lines are written late, as beside a GPU; then the program tells the wall time of its window."""

    script: Script
    mode: str = "train"
    cause: str | None = None
    straggler: int | None = None
    barrier: bool = True
    late: int = 0


def simulate(directory: Path, case: Case, ranks: int, steps: int) -> float:
    """Write `events-<rank>.jsonl` for `steps` measured steps after a warm-up; the true rate: samples / (last end - last begin) of all
    ranks, in inference the sum of samples / (end - begin) of each. Every two ranks are a node, with a clock of its own."""
    ends = [[0.0] for _ in range(ranks)]
    lines: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    for step in range(WARMUP + steps):
        if step == WARMUP and case.barrier:
            left = max(row[-1] for row in ends)
            for rank, row in enumerate(ends):
                row[-1] = left + random.Random(f"barrier {rank}").uniform(0, BARRIER_S)
        todo = [case.script(random.Random(step), step, rank) for rank in range(ranks)]
        ready = [row[-1] + moment.input_s + moment.work_s for row, moment in zip(ends, todo, strict=True)]
        for rank, moment in enumerate(todo):
            left = max(ready) if case.mode == "train" else ready[rank]
            end = left + moment.after_s
            times = {"seconds": end - ends[rank][-1], "input_s": moment.input_s, "exchange_s": left - ready[rank]}
            lines[rank].append({"event": "step", "step": step, "measured": step >= WARMUP, **times, "samples": BATCH, "loss": 1.0})
            ends[rank].append(end)
    begins, last = [row[WARMUP] for row in ends], [row[-1] for row in ends]
    for rank, row in enumerate(ends):
        clock_ns = random.Random(f"clock {rank // 2}").randrange(10**15)
        stop = {"event": "run_stop", "window_wall_s": last[rank] - begins[rank]} if case.late else {"event": "run_stop"}
        written = [min(step + 1 + case.late, len(row) - 1) for step in range(len(lines[rank]))]
        for line, place in zip(lines[rank], written, strict=True):
            line["monotonic_ns"] = clock_ns + round(1e9 * row[place])
        text = "".join(json.dumps(line) + "\n" for line in [*lines[rank], stop])
        (directory / f"events-{rank}.jsonl").write_text(text, encoding="utf-8")
    if case.mode == "train":
        return ranks * BATCH * steps / (max(last) - max(begins))
    return sum(BATCH * steps / (end - begin) for begin, end in zip(begins, last, strict=True))


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


CASES: Final[dict[str, Case]] = {
    "even steps": Case(script=even),
    "bunched input": Case(script=bunched, cause="input"),
    "bunched, lines come late": Case(script=bunched, cause="input", late=5),
    "2 % stalls of 1 s": Case(script=stalling, cause="stragglers"),
    "stalls of the exchange": Case(script=network, cause="stalls"),
    "jitter after the exchange": Case(script=jitter, cause="stragglers"),
    "jitter, and no barrier": Case(script=jitter, cause="stragglers", barrier=False),
    "one straggler": Case(script=straggler, straggler=2),
    "uneven ranks": Case(script=uneven),
    "inference, one slow rank": Case(script=slow_rank, mode="infer", cause="stragglers", straggler=0),
}


def measure(case: Case, ranks: int, steps: int) -> tuple[float, Performance]:
    """(true rate, the record's `performance`)."""
    with tempfile.TemporaryDirectory() as directory:
        truth = simulate(Path(directory), case, ranks, steps)
        found = performance(read_events(Path(directory), ranks), ranks, ranks * BATCH, case.mode)
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
        for name, case in CASES.items():
            truth, found = measure(case, ranks, options.steps)
            assert found.samples_per_s is not None  # a window of steps always has a rate
            error = found.samples_per_s / truth - 1
            by_median = ranks * BATCH / found.step_s.p50 / truth - 1
            worst = max(worst, abs(error))
            named += found.straggler_rank != case.straggler
            said = f"{found.uneven_cause}, {found.straggler_rank}"
            print(f"{ranks:5}  {name:26} {truth:9.2f} {found.samples_per_s:9.2f} {error:8.3%} {by_median:10.1%}  {said}")
    print(f"largest error of a rate {worst:.3%}, aim {AIM:.0%}; stragglers named wrongly {named}, aim 0")
    return int(worst > AIM or named > 0)


if __name__ == "__main__":
    sys.exit(main())
