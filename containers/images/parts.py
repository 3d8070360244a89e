"""The files that a load keeps on the node's disk while it runs, and leaves there when it is killed: `.<archive>.part-<short>`, file or
directory."""

from __future__ import annotations

from pathlib import Path

from base.publish import remove_tree


def parts_of(place: Path, short: str = "*") -> list[Path]:
    """Of one image, or of all."""
    return sorted(place.glob(f".*.part*-{short}"))


def short_of(part: Path) -> str:
    """The image it belongs to, which names the lock."""
    return part.name.rpartition("-")[2]


def remove_part(part: Path) -> None:
    """Whatever it is; nothing where it is not there."""
    if part.is_dir() and not part.is_symlink():
        remove_tree(part)
    else:
        part.unlink(missing_ok=True)
