"""How well the watcher tells what others take of a machine, what it finds, and what it costs.

    python -m benchmarks.busy [--seconds 120] [--pairs 20]

error     What is busy on the cores and not ours, as records tell it, against the processor time of every other process and of those that
          it has waited for, which only a look at all of /proc at the same moments tells. Ours is a program that computes and sleeps in
          turn, some milliseconds each, as a rank does that waits. The difference is what is measured beside a machine where nobody works:
          `false alarms` is how often it alone passes the limit of the mark `busy`.
power     How often the mark is set in windows in which a program beside the run uses so much of a core, from that error and what it used.
cost      Processor time of the watcher; seconds of equal steps on all cores with it over those without it, in turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from cluster.load.readers import KERNEL, Processors
from cluster.machine import usable_cores
from cluster.processes import TICKS_PER_S, ProcessState, all_processes
from workflow.run.node.child import Watcher, watching_argv
from workflow.run.record.machine_load import MIN_OTHERS_S, OTHERS_CORES, OTHERS_RATIO, is_loaded_by_others, load_of, parse_watched

PERIOD_S: Final = 0.5
WINDOWS_S: Final = (1.5, 5.0, 15.0, 30.0)
DRAWS: Final = 20_000
RANK: Final = """
import sys, time
while True:
    end = time.process_time() + 0.003
    while time.process_time() < end: pass
    time.sleep(0.002)
"""
STEP: Final = """
import time
for _ in range({steps}):
    x = 0
    for i in range(400_000): x += i
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--pairs", type=int, default=20)
    arguments = parser.parse_args()
    cores = usable_cores()
    errors = measure_errors(cores, arguments.seconds)
    print(f"{len(cores)} cores; limit of `busy`: {min(OTHERS_CORES, OTHERS_RATIO * len(cores)):g} cores, at least {MIN_OTHERS_S:g} s")
    for window_s, found in errors.items():
        spread = statistics.pstdev(found) if len(found) > 1 else math.nan
        shown = f"error {statistics.fmean(found):+.3f} cores, deviation {spread:.3f}, largest {max(found):+.3f}"
        print(f"window {window_s:g} s: {len(found)} windows, {shown}, {rates(found, window_s, len(cores))}")
    if arguments.pairs > 1:
        cost(cores, arguments.pairs)


def measure_errors(cores: Sequence[int], seconds: float) -> dict[float, list[float]]:
    """Window -> told minus true cores of others, of windows that do not overlap and of which the truth is known."""
    ranks = [subprocess.Popen([sys.executable, "-c", RANK]) for _ in cores]
    try:
        lines, truth = look(cores, seconds)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    watched = parse_watched([json.dumps({"schema": "slipway.load/1", "cores": len(cores)}).encode() + b"\n", *lines])
    assert watched is not None
    errors: dict[float, list[float]] = {}
    times = [line.t for line in watched.lines]
    for window_s in WINDOWS_S:
        begin = 0
        while (end := next((index for index in range(begin, len(times)) if times[index] >= times[begin] + window_s), None)) is not None:
            during = load_of(watched, (times[begin], times[end])).during
            steps = truth[begin + 1 : end + 1]
            if None not in steps:
                true = math.fsum(step for step in steps if step is not None) / (times[end] - times[begin])
                errors.setdefault(window_s, []).append(told_cores(watched, begin, end, during) - true)
            begin = end
    return errors


def told_cores(watched: Any, begin: int, end: int, during: Any) -> float:
    """What the record tells, but for its clamp at 0."""
    first, last = watched.lines[begin], watched.lines[end]
    seconds = last.t - first.t
    used = sum(getattr(last, key) - getattr(first, key) for key in ("idle", "steal", "interrupts", "own", "kernel"))
    told = watched.cores - used / seconds
    assert during.others_cores == 0 or abs(told - during.others_cores) < 0.001, (told, during.others_cores)
    return float(told)


def look(cores: Sequence[int], seconds: float) -> tuple[list[bytes], list[float | None]]:
    """The watcher's lines, and what all processes that are neither ours nor the kernel's have used from each to the next."""
    processors = Processors(cores, [os.getpid()], "")
    lines: list[bytes] = []
    truth: list[float | None] = []
    before: dict[int, ProcessState] = {}
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        now = time.monotonic()
        line = {"t": now, **processors.read_all(now), **processors.read_own(now)}
        lines.append(json.dumps(line).encode() + b"\n")
        ours = processors.trees.ours | processors.trees.above
        states = {state.pid: state for state in all_processes() if state.pid not in ours and KERNEL not in (state.pid, state.parent)}
        truth.append(used(before, states))
        before = states
        time.sleep(max(0.0, now + PERIOD_S - time.monotonic()))
    return lines, truth


def used(before: dict[int, ProcessState], after: dict[int, ProcessState]) -> float | None:
    """Seconds, those that ended included; None where one has ended for which nobody waited: then what it used is gone."""
    gone = {pid: state for pid, state in before.items() if pid not in after or after[pid].start != state.start}
    owed: dict[int, int] = {}
    for pid, state in gone.items():
        heir = pid
        while heir in gone:
            heir = gone[heir].parent
        owed[heir] = owed.get(heir, 0) + state.cpu + state.waited
    for heir, ticks in owed.items():
        if heir not in before or heir not in after or after[heir].waited - before[heir].waited < ticks - 2:
            return None
    total = sum(state.cpu + state.waited for state in after.values()) - sum(state.cpu + state.waited for state in before.values())
    return total / TICKS_PER_S


def rates(errors: Sequence[float], window_s: float, cores: int) -> str:
    """False alarms, and what is found of a program that uses a part of a core, in per cent."""
    chance = random.Random(1)

    def marked(amount: float) -> float:
        parts = ({"seconds": window_s, "others_cores": amount + chance.choice(errors)} for _ in range(DRAWS))
        return 100 * sum(is_loaded_by_others(cores, part["others_cores"], part["seconds"]) for part in parts) / DRAWS

    return f"false alarms {marked(0.0):.1f} %, found of " + ", ".join(
        f"{part:g} cores {marked(part):.0f} %" for part in (0.1, 0.25, 0.5, 1.0)
    )


def cost(cores: Sequence[int], pairs: int) -> None:
    """Of a watcher: processor time, and how much longer steps last beside it."""
    ratios, alone = [], None
    for number in range(2 * pairs):
        with_it = number % 2 == (number // 2) % 2
        watcher = Watcher([watching_argv(sys.executable, cores, "", [os.getpid()])] if with_it else [])
        while with_it and watcher.lines().count(b"\n") < 2:  # its start is before any window
            time.sleep(0.05)
        took = steps_s(len(cores))
        watcher.close()
        if number % 2 == 0:
            alone = took
        else:
            assert alone is not None
            ratios.append(took / alone if with_it else alone / took)
    logs = [math.log(ratio) for ratio in ratios]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    print(f"steps with the watcher / without: {math.exp(statistics.fmean(logs)):.4f} (standard error {error:.4f}, {pairs} pairs)")
    seconds = 60.0
    watcher = Watcher([watching_argv(sys.executable, cores, "", [os.getpid()])])
    time.sleep(1.0)
    begun = watcher_cpu()
    time.sleep(seconds)
    print(f"the watcher used {(watcher_cpu() - begun) / seconds * 100:.2f} % of one core")
    watcher.close()


def watcher_cpu() -> float:
    """Of our one child."""
    return sum(state.cpu for state in all_processes() if state.parent == os.getpid()) / TICKS_PER_S


def steps_s(programs: int, steps: int = 150) -> float:
    """Wall seconds until as many programs as there are cores have done some steps each."""
    began = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-c", STEP.format(steps=steps)]) for _ in range(programs)]
    for program in running:
        program.wait()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
