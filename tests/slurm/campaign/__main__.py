"""Faults at random moments of a running study, then the same command again: `python -m tests.slurm.campaign --faults 50 --seed 1`.

Each round runs one small study on a mini-cluster, through one of the two profiles, injects one fault (after some of its four runs have a
result, and some seconds more), heals what is broken, and starts the same command until it has nothing to do. Then it looks: every run has
one whole, valid record; no process of ours, no lease, no temporary file, no half result, no job is left. Prints one line per round and the
counts; exit code 1 if any round failed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter

from tests.minicluster import Cluster
from tests.slurm.campaign.disk import Disk
from tests.slurm.campaign.faults import FAULTS
from tests.slurm.campaign.playing import play
from tests.slurm.campaign.rounds import Round


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=("slurm", "slurm-allocation", "both"), default="both")
    parser.add_argument("--only", choices=sorted(FAULTS), nargs="+")
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    profiles = ("slurm-allocation", "slurm") if options.profile == "both" else (options.profile,)
    names = options.only or list(FAULTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up then too
    cluster = Cluster.up(f"faults{os.getpid()}", nodes=options.nodes, gpus=2, cores=2, slurmd_timeout=10)
    counts: Counter[str] = Counter()
    disk = Disk(cluster)
    try:
        for number in range(options.faults):
            fault, profile = names[number % len(names)], profiles[(number // len(names)) % len(profiles)]
            began = time.monotonic()
            one = Round(cluster, disk, profile, number, random.Random(options.seed * 1000 + number))  # noqa: S311 - no secret
            problem = play(one, fault)
            counts[f"{fault}: {'wrong' if problem else 'right'}"] += 1
            seconds = time.monotonic() - began
            sys.stdout.write(f"{number + 1:3} {profile:17} {fault:18} after {one.moment:20} {seconds:6.1f} s  {problem or 'right'}\n")
            sys.stdout.flush()
    finally:
        disk.close()
        cluster.down()
    wrong = sum(count for name, count in counts.items() if name.endswith("wrong"))
    sys.stdout.write(f"{options.faults - wrong} of {options.faults} right, seed {options.seed}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
