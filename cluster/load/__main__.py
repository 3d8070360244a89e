"""Write the counters of this machine as lines of JSON to standard output, now and then, until TERM: `python -m cluster.load`.

A child of the node program, which never waits for it: /proc may answer late or not at all, and then this process alone stands still. Each
reader is asked so seldom that it costs at most SHARE of one core, whatever the machine's size; and the longer it goes on, the longer the
pauses, so that a day has some thousand lines.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from base.jsonfile import json_line
from cluster.gpus.energy import EnergyCounters
from cluster.limits import GPU_WATCH_EVERY_S, LOAD_WATCH_EVERY_S
from cluster.load.readers import Gpus, Processors, Rapl, Reader, kernel_seen, machine_readers

SCHEMA: Final = "slipway.load/1"
PARTS: Final = 900
"""A pause is at most the elapsed time divided by this, so that the edges of a window are known that well."""


def watch(out: int, readers: Sequence[tuple[Reader, float, float]], period_s: float = LOAD_WATCH_EVERY_S) -> None:
    """Write lines to the descriptor `out` until TERM, then a last one with all.

    `readers`: each with its share of a core, and the longest pause in seconds that the length of the run may give it.
    """
    began = time.monotonic()
    due = [began] * len(readers)
    ending = False
    while not ending:
        ending = signal.sigtimedwait({signal.SIGTERM}, max(0.0, min(due) - time.monotonic())) is not None
        line: dict[str, object] = {}
        for index, (reader, share, longest_s) in enumerate(readers):
            now = time.monotonic()
            if not ending and due[index] > now + period_s / 2:
                continue  # not yet; those that are due soon come along, for fewer lines
            before = time.process_time()
            line = {"t": round(now, 6), **line, **reader(now)}
            cost_s = time.process_time() - before if due[index] > began else 0.0  # a first look costs more than those that follow
            due[index] = now + max(period_s, min((now - began) / PARTS, longest_s), cost_s / share)
        if line:
            os.write(out, json_line(line))


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until TERM, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cluster.load", description=__doc__)
    parser.add_argument("--cores", required=True, type=_numbers, metavar="N,N,...", help="those that the run uses")
    parser.add_argument("--mark", default="", metavar="NAME=VALUE", help="in the environment of processes of the run")
    parser.add_argument("--ours", default=[], type=_numbers, metavar="PID,...", help="of the run too, with all below, as its supervisor")
    parser.add_argument("--gpus", type=lambda text: text.split(","), metavar="UUID,...", help="look at these instead, by nvidia-smi")
    arguments = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    out = sys.stdout.fileno()
    roots = [os.getppid(), *arguments.ours]
    if arguments.gpus:
        watch(
            out,
            [(Gpus(arguments.gpus, Processors(arguments.cores, roots, arguments.mark), EnergyCounters()), 1.0, math.inf)],
            GPU_WATCH_EVERY_S,
        )
    else:
        rapl = Rapl()
        os.write(out, json_line({"schema": SCHEMA, "cores": len(arguments.cores), "kernel_seen": kernel_seen(), "rapl": rapl.state}))
        watch(out, machine_readers(arguments.cores, roots, arguments.mark, rapl))
    return 0


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
