"""Endings at random moments of runs in containers: `python -m tests.endings --endings 100 --seed 1 --engine docker`.

Each starts a run on a mini-cluster whose nodes have container daemons and GPUs, ends it in one of many ways (`--only`) at a random moment
of one of its steps, and looks from outside until no container, process, lock or lease of ours is left on any node, and what the record
calls it. Containers of others beside it must be the same before and after; with apptainer, enroot and pyxis, the real ones, there are none.
Prints a line per ending, then count and longest time per kind; exit code 1 if any was wrong.
"""

import argparse
import itertools
import os
import random
import signal
import sys
import time
from collections import defaultdict
from typing import Any

from containers.engines import STORES
from containers.images import pyxis_images
from containers.images.pinning import FILE_ENGINES
from tests.endings.faults import FAULTS, LOOK_S, Result, play
from tests.endings.place import One, Others, Place
from tests.minicluster import Cluster
from tests.minicluster.queue import WORDS

KILL_WAIT_S = {"slurm": 30, "pbs": 10, "sge": 0, "lsf": 10}
"""As they have it where nobody says anything; Grid Engine kills at once."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def kinds_of(options: argparse.Namespace) -> list[str]:
    """One per ending, in rounds; those that take long are not in every round."""
    names = [kind for kind in options.only or FAULTS if options.engine == "docker" or not FAULTS[kind].daemon]
    names = [kind for kind in names if FAULTS[kind].only in (None, options.scheduler) and FAULTS[kind].engine in (None, options.engine)]
    if options.engine not in STORES:  # what is in such a container is the job's, and stands still with it
        names = [kind for kind in names if not FAULTS[kind].stills]
    rounds = ((kind for kind in names if options.only or turn % FAULTS[kind].every == 0) for turn in itertools.count())
    return list(itertools.islice(itertools.chain.from_iterable(rounds), options.first - 1, options.first - 1 + options.endings))


def line_of(number: int, kind: str, result: Result, took_s: float) -> str:
    seconds = "     -" if result.seconds is None else f"{result.seconds:6.1f}"
    verdict = "; ".join(result.problems) or "right"
    notes = f"  ({', '.join(result.notes)})" if result.notes else ""
    where = f"{result.nodes} {'node' if result.nodes == 1 else 'nodes':5} {result.moment:14}"
    return f"{number:3} {kind:18} {where} {seconds} s of {took_s:5.1f}  {verdict}{notes}"


def campaign(cluster: Cluster, options: argparse.Namespace, results: dict[str, list[Result]]) -> None:
    place = Place(cluster, "endings", options.engine)
    kinds = kinds_of(options)
    others = Others(place)
    for number, kind in enumerate(kinds, options.first):
        rng = random.Random(options.seed * 1000 + number)  # noqa: S311 - no secret
        began = time.monotonic()
        result = play(One(place, others, rng), kind)
        results[kind].append(result)
        say(line_of(number, kind, result, time.monotonic() - began))
        if kind == "cut":  # with the node the scheduler has given up the job of others too: its container is that of a job that is gone
            others.remove()
            others = Others(place)
    if options.engine == pyxis_images.ENGINE:
        results["next start"].append(next_start(One(place, others, random.Random(options.seed))))  # noqa: S311


def next_start(one: One) -> Result:
    """A run on all nodes that ends by itself: after it nothing is unpacked but its image."""
    result = Result(nodes=len(one.cluster.nodes))
    began = time.monotonic()
    one.start(much=True, deaf=False, walltime_s=120.0, minutes=5, nodes=result.nodes)
    while one.listed():
        time.sleep(LOOK_S)
    result.seconds = time.monotonic() - began
    result.problems = [f"{tree} is still unpacked" for tree in one.place.halves()]
    result.problems += [] if one.place.ends(one.began) == [("ok", None)] else [f"it did not end well: {one.log()[-1000:]}"]
    say(line_of(0, "next start", result, result.seconds))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endings", description=__doc__)
    parser.add_argument("--endings", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="the number of the first: to do one again")
    parser.add_argument("--scheduler", choices=sorted(WORDS), default="slurm")
    parser.add_argument("--engine", choices=(*STORES, *FILE_ENGINES), default="docker")
    parser.add_argument("--only", choices=sorted(FAULTS), nargs="+", metavar="KIND", help=", ".join(FAULTS))
    parser.add_argument("--kill-wait", type=int, help="seconds from TERM to KILL; by default those of the scheduler")
    parser.add_argument("--name", default=f"endings{os.getpid()}", help="of the mini-cluster")
    options = parser.parse_args()
    if options.scheduler != "slurm" and options.engine != "docker":
        parser.error(f"--engine {options.engine}: only Slurm's endings are done with another engine than docker")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up then too
    results: dict[str, list[Result]] = defaultdict(list)
    numbers: dict[str, Any] = {
        "nodes": 2,
        "gpus": 4,
        "cores": 8,
        "docker": True,
        "slurmd_timeout": 30,
        "kill_wait": options.kill_wait or KILL_WAIT_S[options.scheduler],
    }
    cluster = Cluster.up(options.name, scheduler=options.scheduler, **numbers)
    try:
        campaign(cluster, options, results)
    finally:
        wrong = summary(results, options)
        cluster.down()
    return 1 if wrong else 0


def summary(results: dict[str, list[Result]], options: argparse.Namespace) -> int:
    """Said also when it was told to end; how many were wrong."""
    for kind, found in results.items():
        times = [result.seconds for result in found if result.seconds is not None]
        right = sum(not result.problems for result in found)
        longest = f"longest {max(times):.1f} s" if times else "no time"
        bound = f", bound {FAULTS[kind].bound_s:g} s" if kind in FAULTS else ""
        say(f"{kind:18} {right:3} of {len(found):3} right, {longest}{bound}")
    endings = [result for found in results.values() for result in found]
    wrong = sum(bool(result.problems) for result in endings)
    say(f"{len(endings) - wrong} of {len(endings)} right, {options.scheduler}, {options.engine}, seed {options.seed}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
