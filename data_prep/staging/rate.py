"""A cap on bytes per second, shared by the threads of one copy."""

from __future__ import annotations

import threading
import time


class Rate:
    """A token bucket that holds a quarter of a second. None: no cap."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def set(self, bytes_per_s: float | None) -> None:
        """Another cap from now on."""
        self._bytes_per_s = bytes_per_s

    def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` may be read."""
        rate = self._bytes_per_s
        if rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.25) + num_bytes / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)
