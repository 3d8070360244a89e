"""Run a rank as a process, from its start to its exit code."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Tuple

from slipway_events import EventFile, kind_of
from slipway_events import LossNotFinite as LossNotFinite

EXITS = {"oom": 41, "nan": 42, "storage": 44}


def describe_failure(error: BaseException) -> Tuple[str, int]:
    """Return (kind of the error event, exit code) for the exception that ended the program."""
    kind = kind_of(error)
    return kind, EXITS.get(kind, 1)


Run = Callable[[Any, Path, Path, EventFile], int]
"""(cell, dataset, directory to write to, events) -> the exit code."""


def main(load: Callable[[], Run]) -> None:
    """Run the cell of this process, and end it. `load` imports the framework: that takes a second, and its failure must be an event too."""
    rank = int(os.environ["RANK"])
    events = EventFile(os.environ["SLIPWAY_OUT"], rank)
    events.phase("init")
    try:
        cell = json.loads(Path(os.environ["SLIPWAY_CELL"]).read_text(encoding="utf-8"))
        exit_code = int(load()(cell, Path(os.environ["SLIPWAY_DATA"]), Path(os.environ["SLIPWAY_OUT"]), events))
    except Exception as error:
        kind, exit_code = describe_failure(error)
        events.emit("error", kind=kind, message=f"{type(error).__name__}: {error}"[:4000])
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure a framework would wait for ranks that are gone, and even at a good end what it tidies up can hang. All
    # files are written; child processes die with this one.
    os._exit(exit_code)
