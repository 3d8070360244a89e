"""Faults at random moments of a running study, then the same command again: `python -m tests.campaign --faults 50 --seed 1`.

Each round runs one small study on a mini-cluster, a job per run or one job for all, injects one fault (after some of its four runs have a
result, and some seconds more), heals what is broken, and starts the same command until it has nothing to do. Then it looks: every run has
one whole, valid record; no process of ours, no lease, no temporary file, no half result, no job is left. Prints one line per round and the
counts; exit code 1 if any round failed.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter

from tests.campaign.faults import FAULTS, TOO_LATE, faults_of, play
from tests.campaign.rounds import Disk, Round, attempts
from tests.minicluster import Cluster
from tests.minicluster.queue import WORDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scheduler", choices=sorted(WORDS), default="slurm")
    parser.add_argument("--way", choices=("run", "submit", "both"), default="both")
    parser.add_argument("--only", choices=sorted(FAULTS), nargs="+")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--light", action="store_true", help="runs that sleep for 5 s in the place of PyTorch")
    options = parser.parse_args()
    ways = ("submit", "run") if options.way == "both" else (options.way,)
    names = options.only or faults_of(options.scheduler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up then too
    numbers = {"nodes": options.nodes, "gpus": 2, "cores": 2, "slurmd_timeout": 10}
    cluster = Cluster.up(f"faults{os.getpid()}", scheduler=options.scheduler, **numbers)
    counts: Counter[str] = Counter()
    disk = Disk(cluster)
    try:
        for number in range(options.faults):
            again, index = divmod(number, len(names))
            fault, way = names[index], ways[(again + index) % len(ways)]
            began = time.monotonic()
            one = Round(cluster, disk, way, fault, number, random.Random(options.seed * 1000 + number), options.light)  # noqa: S311 - no secret
            problem = play(one)
            verdict = "right" if not problem else TOO_LATE if problem == TOO_LATE else "wrong"
            counts[verdict] += 1
            seconds = time.monotonic() - began
            told = dict(Counter(status for status, _ in attempts(one)))
            sys.stdout.write(f"{number + 1:3} {way:6} {fault:18} after {one.moment:20} {seconds:6.1f} s  {problem or 'right'} {told}\n")
            sys.stdout.flush()
    finally:
        disk.close()
        cluster.down()
    numbers_said = f"{counts['right']} of {counts['right'] + counts['wrong']} right, {counts[TOO_LATE]} {TOO_LATE}"
    sys.stdout.write(f"{numbers_said}, {options.scheduler}, seed {options.seed}\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
