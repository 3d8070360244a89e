"""A rank as a process: from its start to its exit code."""

import errno
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Tuple

from slipway_events import LossNotFinite as LossNotFinite
from slipway_events import kind_of

from .events import Events

EXITS = {"oom": 41, "nan": 42}
STORAGE_EXIT = 44

_OF_A_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV)
_READ_ONLY = re.compile(r"Read-only file system(?: \(os error \d+\))?: '([^']*)'")
# Safetensors writes from Rust, and passes on the words of an error without its number.
_DISK_ERROR = re.compile(rf"(\[Errno|\(os error) ({'|'.join(map(str, _OF_A_DISK))})[\])]")


def describe_failure(error: BaseException) -> Tuple[str, int]:
    """Return (kind of the error event, exit code) for the exception that ended the program."""
    kind = kind_of(error)
    if kind in EXITS:
        return kind, EXITS[kind]
    if _is_of_storage(error):
        return "storage", STORAGE_EXIT
    return "error", 1


def _is_of_storage(error: BaseException) -> bool:
    """Return True if the staged dataset is not what it was, or a disk does not do what it should. To write to a place that it may only read
    is the program's own fault: of a disk is what keeps it from writing where it may.
    """
    read_only = _READ_ONLY.search(str(error))
    if read_only is not None and not _may_be_written(read_only.group(1)):
        return False
    if "DatasetChanged" in {cls.__name__ for cls in type(error).__mro__}:  # of slipway_reader
        return True
    return (isinstance(error, OSError) and error.errno in _OF_A_DISK) or _DISK_ERROR.search(str(error)) is not None


def _may_be_written(path: str) -> bool:
    out = os.path.realpath(os.environ.get("SLIPWAY_OUT", os.curdir))
    return os.path.realpath(path).startswith(os.path.join(out, ""))


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
        events.emit("error", kind=kind, message=f"{type(error).__name__}: {error}"[:4000])
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after a failure a framework would wait for ranks that are gone, and even at a good end what it tidies up can hang. All
    # files are written; child processes die with this one.
    os._exit(exit_code)
