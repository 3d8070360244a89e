"""Read where a study stands in a thread of its own, and show it: storage may hang, and the command that waits for Ctrl-C must not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from workflow.commands.watching.shown import Shown
from workflow.commands.watching.study_state import StudyState

EVERY_S: Final = 1.0
LAST_S: Final = 10.0

logger = logging.getLogger(__name__)


class Refresher:
    """Reads every second until `stop`."""

    def __init__(self, read: Callable[[], StudyState], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._new: list[StudyState] = []
        self._last: StudyState | None = None
        self._stop = threading.Event()
        self._at = clock()
        self._thread = threading.Thread(target=self._go_on, name="refresher", daemon=True)
        self._thread.start()

    def draw(self, view: Shown, *, ending: bool = False) -> None:
        """Show the newest state, and what has ended since the last call. `ending`: we were told to end."""
        self._tell(view)
        if self._last is not None:
            view.show(replace(self._last, ending=ending), self._clock() - self._at)

    def stop(self, view: Shown) -> None:
        """StudyState no more, and tell what has ended by now, if storage answers."""
        self._stop.set()
        self._thread.join(LAST_S)
        self._tell(view)

    def _tell(self, view: Shown) -> None:
        with self._lock:
            found, self._new = self._new, []
        for study in found:
            view.ended(study)
            self._last = study

    def _go_on(self) -> None:
        while True:
            last = self._stop.wait(EVERY_S)
            try:
                study = self._read()
            except OSError as error:
                logger.warning("storage cannot be looked at: %s: %s", error.filename, error.strerror)
            else:
                with self._lock:
                    self._new.append(study)
                self._at = self._clock()
            if last:
                return
