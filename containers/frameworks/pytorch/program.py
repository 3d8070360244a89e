"""One rank of a training or inference run in PyTorch. In: the files and variables of docs/framework-contract.md; out: events, parameters
and the exit code, 0 done, 41 out of memory, 42 the loss is not finite, 43 stopped at a checkpoint, 44 a disk or the staged dataset failed,
45 a loader process was killed, 1 anything else. The run itself is slipway_pytorch/training.py.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from slipway_pytorch.events import Events  # type: ignore[import-not-found]
from slipway_pytorch.failures import describe_failure, failure_message  # type: ignore[import-not-found]


def main() -> int:
    """Run the cell of this process; the exit code."""
    rank = int(os.environ["RANK"])
    events = Events(Path(os.environ["SLIPWAY_OUT"], f"events-{rank}.jsonl"))
    events.phase("init")
    try:
        cell = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text(encoding="utf-8"))
        # Here, and not above: torch takes most of a second to import, and its failure must be an event too.
        from slipway_pytorch.training import run  # type: ignore[import-not-found]

        return int(run(cell, Path(os.environ["SLIPWAY_DATA"]), Path(os.environ["SLIPWAY_OUT"]), events))
    except Exception as error:
        kind, exit_code = describe_failure(error)
        events.emit("error", kind=kind, message=failure_message(error))
        traceback.print_exc()
        return exit_code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure the process group would wait for ranks that are gone, and even at a good end its destructor can hang
    # (communication.py). All files are written; the loader processes die with this one.
    os._exit(code)
