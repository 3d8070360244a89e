"""Find out that a container ran out of memory, even if its first process was the victim."""

from __future__ import annotations

from pathlib import Path

from cluster.machine import oom_counters, read_oom_kills


class OomCount:
    """How often the kernel has killed for want of memory in the cgroup of a process, seen from outside of it."""

    def __init__(self, pid: int) -> None:
        files = oom_counters(Path(f"/proc/{pid}/cgroup"))
        self._before = {path: count for path in files if (count := read_oom_kills(path)) is not None}
        self._risen = False

    def rose(self) -> bool:
        """Since this was made; what was seen once stays true."""
        found = ((read_oom_kills(path), before) for path, before in self._before.items())
        self._risen = self._risen or any(now is not None and now > before for now, before in found)
        return self._risen
