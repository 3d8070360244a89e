"""Tell how much memory there is to hold files."""

import os
from typing import List


def free_memory() -> int:
    """Return how many bytes of files the page cache can keep: the free memory of the machine, or the limit of this process's cgroup."""
    return min(_available() + _limits(), default=1 << 62)


def _available() -> List[int]:
    return [1024 * int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]


def _limits() -> List[int]:
    """Return the limits of the cgroup of this process and of those above it. In a container it is the root of what is mounted."""
    found = []  # type: List[int]
    for line in _lines("/proc/self/cgroup"):
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("/sys/fs/cgroup", "memory.max")
        parts = [part for part in place.split("/") if part]
        for depth in range(len(parts) + 1):
            found += [int(text) for text in _lines(os.path.join(root, *parts[:depth], name)) if text.isdigit()]
    return found


def _lines(path: str) -> List[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
