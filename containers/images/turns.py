"""Take turns with other nodes in reading an archive from storage: when this node may read, how fast, and how far it is. The run's
supervisor decides."""

from __future__ import annotations

import json
import time
from typing import IO, Final, Protocol

from base.errors import ContainerError

SAY_EVERY_S: Final = 2.0


class Reading(Protocol):
    """Of one archive, by whoever copies it."""

    def begin(self, num_bytes: int) -> None:
        """Wait until that many may be read."""

    def moved(self, num_bytes: int) -> None:
        """So many more were read; wait where that was too fast."""

    def end(self) -> None:
        """Storage is read no more."""


class Alone:
    """Nobody gives turns: at once, as fast as it goes."""

    def begin(self, num_bytes: int) -> None:
        """At once."""

    def moved(self, num_bytes: int) -> None:
        """As fast as it goes."""

    def end(self) -> None:
        """Nobody waits for it."""


class InTurn:
    """{"wants": bytes} is said, and a line {"bytes_per_s": number or null} is the turn; {"progress": [done, total]} now and then, and in
    the end {"read": bytes}."""

    def __init__(self, hears: IO[str], says: IO[str], say_every_s: float = SAY_EVERY_S) -> None:
        self._hears, self._says, self._say_every_s = hears, says, say_every_s
        self._bytes_per_s: float | None = None
        self._began = self._said = 0.0
        self._done = self._total = 0

    def begin(self, num_bytes: int) -> None:
        """Raises ContainerError when whoever gives the turns has gone."""
        self._say(wants=num_bytes)
        line = self._hears.readline()
        if not line:
            raise ContainerError("the node program that asked for the image has gone")
        self._bytes_per_s = json.loads(line)["bytes_per_s"]
        self._began = self._said = time.monotonic()
        self._done, self._total = 0, num_bytes

    def moved(self, num_bytes: int) -> None:
        """Tell of it, then wait until it was due."""
        self._done += num_bytes
        now = time.monotonic()
        if now - self._said >= self._say_every_s:
            self._said = now
            self._say(progress=[self._done, self._total])
        if self._bytes_per_s:
            time.sleep(max(0.0, self._began + self._done / self._bytes_per_s - now))

    def end(self) -> None:
        """The next node may."""
        self._say(read=self._done)

    def _say(self, **words: object) -> None:
        self._says.write(json.dumps(words) + "\n")
        self._says.flush()
