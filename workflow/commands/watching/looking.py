"""Look at a study in a thread of its own: network storage may hang, and the command that waits for Ctrl-C must not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from workflow.commands.watching.look import Look

EVERY_S: Final = 1.0
LAST_S: Final = 10.0

logger = logging.getLogger(__name__)


class Looker:
    """Looks every second until `stop`. `take` gives the looks that nobody has taken yet."""

    def __init__(self, look: Callable[[], Look], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._lock = threading.Lock()
        self._new: list[Look] = []
        self._stop = threading.Event()
        self._at = clock()
        self._thread = threading.Thread(target=self._go_on, name="looks", daemon=True)
        self._thread.start()

    def take(self) -> list[Look]:
        """Since the last call, oldest first."""
        with self._lock:
            found, self._new = self._new, []
        return found

    @property
    def age_s(self) -> float:
        """How long ago the last look was done."""
        return self._clock() - self._at

    def stop(self) -> list[Look]:
        """The last looks, one after now among them, if storage answers."""
        self._stop.set()
        self._thread.join(LAST_S)
        return self.take()

    def _go_on(self) -> None:
        while True:
            last = self._stop.wait(EVERY_S)
            try:
                look = self._look()
            except OSError as error:
                logger.warning("storage cannot be looked at: %s: %s", error.filename, error.strerror)
            else:
                with self._lock:
                    self._new.append(look)
                self._at = self._clock()
            if last:
                return
