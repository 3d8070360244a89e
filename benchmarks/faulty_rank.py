"""A rank of Slipway's PyTorch program with a fault: `python -m benchmarks.bounds` starts it, with the folder of the program.

SLIPWAY_FAULT is `kind seconds device`: `input` (the reader needs so long for each batch), `disk` (as long, in which it reads the file
SLIPWAY_FAULT_FILE past the page cache), `rank` (rank 1 computes so much longer), `compute` (all ranks do), `delay` (the exchange of each
bucket ends so much later), `none`, or `noop` by its cell. In each forward the rank sleeps for the seconds of a device beside that.
"""

import mmap
import os
import random
import runpy
import sys
import time
from typing import Any

BLOCK = 1 << 20


def slow_reader(kind: str, seconds: float) -> None:
    """Let each batch take `seconds` or more, spent waiting for a disk or asleep."""
    from slipway_program.plan import Plan

    read = Plan.read

    def slow(self: Any, splits: Any, number: int, out: Any = None) -> Any:
        until = time.monotonic() + seconds
        found = read(self, splits, number, out)
        if kind == "disk":
            read_past_the_cache(os.environ["SLIPWAY_FAULT_FILE"], until)
        else:
            time.sleep(max(0.0, until - time.monotonic()))
        return found

    Plan.read = slow


def read_past_the_cache(path: str, until: float) -> None:
    """Read anywhere in the file until then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(descriptor).st_size // BLOCK
    with mmap.mmap(-1, BLOCK) as buffer:
        while time.monotonic() < until:
            os.preadv(descriptor, [buffer], random.randrange(blocks) * BLOCK)
    os.close(descriptor)


def slow_forward(seconds: float) -> None:
    """Let each forward of this rank take so much longer."""
    from slipway_pytorch.network import Network  # type: ignore[import-not-found]

    forward = Network.forward

    def slow(self: Any, inputs: Any) -> Any:
        time.sleep(seconds)
        return forward(self, inputs)

    Network.forward = slow


def slow_exchange(seconds: float) -> None:
    """Let the exchange of each bucket end so much later."""
    from slipway_pytorch import steps  # type: ignore[import-not-found]
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    distribute = steps.distribute

    def late(bucket: Any) -> Any:
        def wait(done: Any) -> Any:
            time.sleep(seconds)
            return done.value()[0]

        return default_hooks.allreduce_hook(None, bucket).then(wait)

    def distributed(*arguments: Any, **options: Any) -> Any:
        ddp = distribute(*arguments, **options)
        ddp.register_comm_hook(None, lambda _, bucket: late(bucket))
        return ddp

    steps.distribute = distributed


def main() -> None:
    """Put the fault in its place, and run the program."""
    sys.path.insert(0, sys.argv[1])
    kind, seconds, device = os.environ["SLIPWAY_FAULT"].split()
    computes_longer = kind == "compute" or (kind == "rank" and os.environ["RANK"] == "1")
    if forward_s := float(device) + computes_longer * float(seconds):
        slow_forward(forward_s)
    if kind in ("input", "disk"):
        slow_reader(kind, float(seconds))
    elif kind == "delay":
        slow_exchange(float(seconds))
    runpy.run_path(os.path.join(sys.argv[1], "program.py"), run_name="__main__")


if __name__ == "__main__":
    main()
