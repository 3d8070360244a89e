"""Copy what the command of a session prints from its log on the first node to storage, as it comes, in a child with a time limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from extras.session.request import OUTPUT
from workflow.run.node.workdir import of_run

RANK_LOG: Final = "own/logs/rank-0.log"
PIECE: Final = 1 << 20


def bring_output(cache: str, directory: str, start: int) -> int:
    """Copy what came behind the first `start` bytes of the log to the same place in the file on storage, so that it may be done twice.
    Return how much is there then. Raises OSError."""
    log = next((path for work in of_run(Path(cache), Path(directory)) if (path := work / RANK_LOG).is_file()), None)
    if log is None:
        return start
    with log.open("rb") as source:
        source.seek(start)
        piece = source.read(PIECE)
        if not piece:
            return start
        target = os.open(Path(directory, OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while piece:
                for_storage = memoryview(piece)
                while for_storage:
                    written = os.pwrite(target, for_storage, start)
                    start, for_storage = start + written, for_storage[written:]
                piece = source.read(PIECE)
        finally:
            os.close(target)
    return start
