"""The controller is away for ten minutes in the middle of 30 runs: `python -m tests.slurm.patience [--way jobs] [--fault kill]`.

`stop`: slurmctld is stopped where it is, and goes on; `kill`: it is killed, and started again. Either way all runs must have one result,
and none two. Prints a line per study; exit code 1 if one of them is not so. Needs root (tests/minicluster).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from tests.minicluster import Cluster
from tests.slurm.patience.playing import HEALS, VERBS, Found, Study


def main() -> int:
    """A cluster, and one study after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.patience", description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="an even number")
    parser.add_argument("--silent", type=float, default=600.0, help="seconds")
    parser.add_argument("--way", choices=tuple(VERBS), nargs="+", default=tuple(VERBS))
    parser.add_argument("--fault", choices=tuple(HEALS), nargs="+", default=tuple(HEALS))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down then too
    cluster = Cluster.up(f"patience{os.getpid()}", nodes=2, gpus=2, cores=2)
    wrong = 0
    try:
        for fault in options.fault:
            for way in options.way:
                study = Study(cluster, way, fault, options.runs)
                found = study.play(options.silent)
                right = found.code == 0 and len(found.results) == options.runs and set(found.results.values()) == {1}
                wrong += not right
                sys.stdout.write(f"{study.name}: {words(found, options.runs, options.silent)}\n")
                if not right:
                    sys.stdout.write(found.said[-8000:])
                sys.stdout.flush()
    finally:
        cluster.down()
    return 1 if wrong else 0


def words(found: Found, runs: int, silent_s: float) -> str:
    """One line."""
    ends = ", ".join(f"{count} {status}" for status, count in sorted(found.statuses.items()))
    twice = sum(count > 1 for count in found.results.values())
    more = sum(found.jobs.values()) - len(found.jobs)
    return (
        f"exit code {found.code}, {len(found.results)} of {runs} runs with a result ({ends}), {twice} with two; {found.attempts} attempts, "
        f"{more} jobs beyond one per run; away for {silent_s:g} s, from {found.before} results to {found.after}; "
        f"{found.seconds:.0f} s in all"
    )


if __name__ == "__main__":
    sys.exit(main())
