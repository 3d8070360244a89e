"""What it costs to submit many jobs one by one, as Slipway does, against one job array of as many tasks.

    python -m benchmarks.submissions [--scheduler slurm sge pbs] [--jobs 100] [--repeats 3]

On a mini-cluster each, in turns: all jobs are held, so that nothing starts meanwhile. `cpu`: of the submitting command and of the
scheduler's daemons on the login node, which a busy machine does not change. Needs root (tests/minicluster).
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.minicluster import Cluster, processes
from tests.minicluster.spec import USER

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Words:
    """`held`: the beginning of a script whose job does not start, with its name to be filled in; `array`: options for tasks 1 to N."""

    submit: tuple[str, ...]
    held: str
    array: tuple[str, ...]
    daemons: tuple[str, ...]
    clean: str


SCHEDULERS: Final = {
    "slurm": Words(
        submit=("sbatch", "--parsable"),
        held="#!/bin/bash\n#SBATCH --hold --output=/dev/null --time=10 --job-name=slipway-x.{}\n",
        array=("--array=1-{}",),
        daemons=("slurmctld",),
        clean="scancel --me",
    ),
    "sge": Words(
        submit=("qsub", "-terse"),
        held="#$ -h -o /dev/null -j y -S /bin/bash -N slipway-x.{}\n",
        array=("-t", "1-{}"),
        daemons=("sge_qmaster",),
        clean="qdel -u $USER",
    ),
    "pbs": Words(
        submit=("qsub",),
        held="#!/bin/bash\n#PBS -h -o /dev/null -j oe -N slipway-x.{}\n",
        array=("-J", "1-{}"),
        daemons=("pbs_server.bin", "pbs_sched", "pbs_comm", "postgres"),
        clean="qselect | xargs -r qdel -x",
    ),
}


def submit(words: Words, jobs: int, *, array: bool) -> None:
    """On the login node."""
    options = [option.format(jobs) for option in words.array] if array else []
    for index in range(1 if array else jobs):
        argv = [*words.submit, *options]
        subprocess.run(argv, input=f"{words.held.format(index)}true\n", text=True, check=True, stdout=subprocess.DEVNULL)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and of the processors for the commands."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def daemons_s(cluster: Cluster, names: tuple[str, ...]) -> float:
    """Seconds of the processors that they have used so far."""
    ticks = 0
    for pid in processes.named(cluster.spec, "login", names):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(scheduler: str, jobs: int, repeats: int) -> None:
    """Print a line for each of the two ways: medians."""
    words = SCHEDULERS[scheduler]
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    cluster = Cluster.up(f"sub{os.getpid()}", scheduler=scheduler, nodes=1, cores=2)
    try:
        for _ in range(repeats):
            for array in (False, True):
                before = daemons_s(cluster, words.daemons)
                argv = [sys.executable, "-m", "benchmarks.submissions", "--inside", scheduler, "--jobs", str(jobs), *(["--array"] * array)]
                done = cluster.exec("login", argv, cwd=ROOT, user=USER, check=True)
                wall, cpu = map(float, done.stdout.split())
                found[array].append((wall, cpu, daemons_s(cluster, words.daemons) - before))
                cluster.exec("login", ["bash", "-c", words.clean], user=USER)
    finally:
        cluster.down()
    for array, name in ((False, f"{jobs} jobs"), (True, f"1 array of {jobs}")):
        wall, cpu, daemons = (statistics.median(values) for values in zip(*found[array], strict=True))
        print(f"{scheduler:>5}, {name:>14}: {wall:6.2f} s; cpu: commands {cpu:.2f} s, daemons {daemons:.2f} s", flush=True)


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down also where a time limit ends us
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", nargs="+", choices=tuple(SCHEDULERS), default=tuple(SCHEDULERS))
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--array", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(*measured(lambda: submit(SCHEDULERS[options.inside], options.jobs, array=options.array)))
        return
    for scheduler in options.scheduler:
        compare(scheduler, options.jobs, options.repeats)


if __name__ == "__main__":
    main()
