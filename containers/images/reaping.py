"""Remove images of ours from this node that were not used lately. Deciding is pure.

It removes only images with our own tag, and never by force: the engine itself refuses to remove an image that a container uses or that has
another name.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from base import errors, humanize, process, publish
from containers import engines, limits
from containers.engines import container_start
from containers.images import commands, pyxis_images
from containers.images.last_use import forget, last_used, locked, our_repository, parts_of, short_of
from containers.images.pinning import FILE_ENGINES, suffix_of


@dataclass(frozen=True, kw_only=True)
class LoadedImage:
    """One image of ours on this node. `used`: Unix time, None where no mark says; `handle`: what is removed, a tag or a path."""

    short: str
    handle: str
    bytes: int
    used: float | None


def plan_reap_images(images: Sequence[LoadedImage], now: float, unused_s: float = limits.IMAGE_UNUSED_S) -> tuple[LoadedImage, ...]:
    """Choose the images that were not used for `unused_s`, least recently used first."""
    by_use = sorted(images, key=lambda image: (image.used or 0.0, image.short))
    return tuple(image for image in by_use if now - (image.used or 0.0) > unused_s)


def list_argv(engine: str, uid: int) -> list[str]:
    """Return the command that lists the images with our tag."""
    reference = engines.STORES[engine].local_names + our_repository(uid)
    return [engine, "images", "--no-trunc", "--filter", f"reference={reference}", "--format", "{{.Repository}} {{.Tag}} {{.Size}}"]


def parse_images(text: str, engine: str) -> list[tuple[str, str, int]]:
    """Return (short, tag, bytes, rounded by the engine) of each. Raises ContainerError."""
    found = []
    for line in text.splitlines():
        try:
            repository, tag, size = line.split(" ", 2)
            found.append((tag, f"{repository}:{tag}", humanize.parse_size(size)))
        except ValueError as error:
            raise errors.ContainerError(f"{engine} listed an image in a way that cannot be read ({error}): {line[:300]!r}") from error
    return found


def find_images(engine: str, cache: Path, uid: int) -> tuple[LoadedImage, ...]:
    """Return what of ours is in this node's engine, or in the cache. Raises ContainerError."""
    place = cache / "images"
    if engine in engines.STORES:
        rows = parse_images(commands.demand(list_argv(engine, uid), limits.IMAGE_LIST_S), engine)
    else:
        files = sorted(place.glob(f"*{suffix_of(engine)}")) if engine in FILE_ENGINES else []
        users = {path: {other: last_used(place, path.stem, other) or 0.0 for other in _engines_of_same_file(engine)} for path in files}
        rows = [(path.stem, str(path), path.stat().st_size) for path, used in users.items() if max(used, key=used.__getitem__) == engine]
    return tuple(LoadedImage(short=short, handle=handle, bytes=size, used=last_used(place, short, engine)) for short, handle, size in rows)


def _engines_of_same_file(engine: str) -> list[str]:
    return [other for other in FILE_ENGINES if suffix_of(other) == suffix_of(engine)]


def remove_image(image: LoadedImage, engine: str, cache: Path) -> str | None:
    """Remove one; None, or in words why it stays: a container uses it, a load holds it, a run that is about to start has loaded it."""
    place = cache / "images"
    try:
        with locked(place / f"{image.short}.lock", f"remove image {image.short}", 0.0):
            if last_used(place, image.short, engine) != image.used:
                return "a run has loaded it since it was listed"
            if engine not in engines.STORES:
                return _remove_file(image, engine, place)
            result = container_start.call([engine, "rmi", image.handle], limits.IMAGE_REMOVE_S)
            if result.returncode:
                return process.last_lines(result.stderr, 1)
            forget(place, image.short, engine)
    except errors.ContainerError as error:
        return str(error)
    return None


def _remove_file(image: LoadedImage, engine: str, place: Path) -> str | None:
    """Remove what was unpacked of a file, by whichever engine, and then the file: without it nobody would find that again."""
    if pyxis_images.ENGINE in _engines_of_same_file(engine):
        pyxis_images.remove(pyxis_images.name_of(place, image.short))
    problem = publish.remove_leftover(Path(image.handle))
    if problem is None:
        for other in _engines_of_same_file(engine):
            forget(place, image.short, other)
    return problem


def reap_parts(cache: Path, *, act: bool) -> list[tuple[Path, str | None]]:
    """Remove with `act` the copies of archives that killed loads have left; each with None, or why it stays. Whose lock is held, that is
    being written."""
    found = []
    for part in parts_of(cache / "images"):
        with contextlib.suppress(errors.ContainerError), locked(part.with_name(f"{short_of(part)}.lock"), f"remove {part}", 0.0):
            found.append((part, publish.remove_leftover(part) if act else None))
    return found


def reap_images(engine: str, cache: Path, *, act: bool, unused_s: float = limits.IMAGE_UNUSED_S) -> list[tuple[LoadedImage, str | None]]:
    """Plan and with `act` remove: each image of the plan with None, or why it stays."""
    found = find_images(engine, cache, os.geteuid())
    chosen = plan_reap_images(found, time.time(), unused_s)
    return [(image, remove_image(image, engine, cache) if act else None) for image in chosen]
