"""A rank as a process: from its start to its exit code."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Callable

from .events import Events
from .failures import describe_failure, failure_message

Run = Callable[[Any, Path, Path, Events], int]
"""(cell, dataset, directory to write to, events) -> the exit code."""


def main(load: Callable[[], Run]) -> None:
    """Run the cell of this process, and end it. `load` imports the framework: that takes a second, and its failure must be an event too."""
    rank = int(os.environ["RANK"])
    events = Events(Path(os.environ["SLIPWAY_OUT"], "events-%d.jsonl" % rank))
    events.phase("init")
    try:
        cell = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text(encoding="utf-8"))
        exit_code = int(load()(cell, Path(os.environ["SLIPWAY_DATA"]), Path(os.environ["SLIPWAY_OUT"]), events))
    except Exception as error:
        kind, exit_code = describe_failure(error)
        events.emit("error", kind=kind, message=failure_message(error))
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure a framework would wait for ranks that are gone, and even at a good end what it tidies up can hang. All
    # files are written; child processes die with this one.
    os._exit(exit_code)
