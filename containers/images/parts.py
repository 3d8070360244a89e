"""The files that a load keeps on the node's disk while it runs, and leaves there when it is killed: `.<archive>.part-<short>`, file or
directory."""

from __future__ import annotations

from pathlib import Path


def parts_of(place: Path, short: str = "*") -> list[Path]:
    """Of one image, or of all."""
    return sorted(place.glob(f".*.part*-{short}"))


def short_of(part: Path) -> str:
    """The image it belongs to, which names the lock."""
    return part.name.rpartition("-")[2]
