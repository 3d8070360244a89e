"""Lines into a child's standard input, from an event loop: what does not fit into the pipe waits here."""

from __future__ import annotations

import os
from typing import IO

from workflow.run.link.event_loop import Loop


class ChildInput:
    """Owns the writing end `pipe`. A child that reads no more is left alone: its end is noticed elsewhere."""

    def __init__(self, loop: Loop, pipe: IO[bytes]) -> None:
        self._loop, self._pipe = loop, pipe
        self._waiting = bytearray()
        os.set_blocking(pipe.fileno(), False)

    def feed(self, line: bytes) -> None:
        """Write it now, or as much as goes and the rest later."""
        if not self._pipe.closed:
            self._waiting += line
            self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._pipe.fileno(), self._waiting)]
        except BlockingIOError:
            self._loop.watch(self._pipe.fileno(), self._flush, self._flush)
            return
        except OSError:
            self._waiting.clear()
        self._loop.unwatch(self._pipe.fileno())

    def close(self) -> None:
        """No more lines."""
        if not self._pipe.closed:
            self._loop.unwatch(self._pipe.fileno())
            self._waiting.clear()
            self._pipe.close()
