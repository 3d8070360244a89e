"""Load an archived image into the engine of this node: under a lock, hashed before the engine sees a byte, and checked afterwards.

Nothing is pulled. What is there already costs one question to the engine. `<cache>/images/` holds the lock, for apptainer and enroot the
image, and while a load runs what podman unpacks. In a run the checked copy of the archive is brought by others (data_prep.staging).
"""

import errno
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from base import errors, publish, system
from containers.engines import STORES
from containers.images import commands, pyxis_images
from containers.images.last_use import forget, is_checked, locked, mark_used, our_tag, parts_of
from containers.images.model import FILES, ArchivedImage, PinnedImage, check_platform, read_manifest
from containers.images.streams import copy_hashed, feed_decompressed, hash_file, not_enough, require
from containers.limits import IMAGE_LOCK_WAIT_S, IMAGE_TAG_S


@dataclass(frozen=True, kw_only=True)
class Bringing:
    """The caller's part of a load. `wait()` is called when the load must wait for its lock; `bring(bytes)` returns a copy of the archive on
    this node."""

    wait: Callable[[], None] = lambda: None
    bring: Callable[[int], Path]


def load(archive: Path, engine: str, cache: Path, *, limit_s: float = IMAGE_LOCK_WAIT_S, bringing: Bringing | None = None) -> str:
    """Load it unless the engine has it; the id to start. Raises DigestMismatch, NotEnoughSpace, ContainerError, RecordError, StorageError.
    May be slow, and reads storage: call it in a process of its own.
    """
    entry = read_manifest(archive)
    image, bringing = entry.image, bringing or Bringing(bring=lambda _bytes: archive)
    check_platform(image, platform.machine())
    place = cache / "images"
    lock = place / f"{image.short}.lock"
    with locked(lock, _doing(image), limit_s, bringing.wait):
        if _is_here(entry, engine, place):
            _use(entry, engine, place)
            return image.image_id
    require(_needs(entry, engine, place), _doing(image))
    copy = bringing.bring(entry.bytes)  # may wait for other nodes: no other run shall wait for that at our lock
    with locked(lock, _doing(image), limit_s):
        if not _is_here(entry, engine, place):
            for part in parts_of(place, image.short):
                publish.remove_leftover(part)  # of a load that was killed: we hold its lock
            _fetch(entry, archive, engine, place, copy)
        _use(entry, engine, place)
    return image.image_id


def _use(entry: ArchivedImage, engine: str, place: Path) -> None:
    """Raise ContainerError where the image cannot be unpacked."""
    image = entry.image
    if engine == pyxis_images.ENGINE:
        pyxis_images.provide(place, place / entry.file, image.short, lambda: forget(place, image.short, engine))
    mark_used(place, image, engine)


def image_to_start(entry: ArchivedImage, engine: str, cache: Path) -> str:
    """Return what an engine's command line is given: the id, the path of the image's file on this node, or the name of what is unpacked of
    it."""
    if engine == pyxis_images.ENGINE:
        return pyxis_images.name_of(cache / "images", entry.image.short)
    return str(cache / "images" / entry.file) if engine not in STORES else entry.image.image_id


def loaded_id(entry: ArchivedImage, engine: str, cache: Path) -> str:
    """Return the id of what this node would start, asked again before a start; empty where it has nothing. Raises ContainerError."""
    here = _is_here(entry, engine, cache / "images")
    if here and engine == pyxis_images.ENGINE:
        here = pyxis_images.tree(image_to_start(entry, engine, cache)) is not None
    return entry.image.image_id if here else ""


def _is_here(entry: ArchivedImage, engine: str, place: Path) -> bool:
    if engine not in STORES:
        if is_checked(place, entry.image, engine):
            return True
        try:
            return hash_file(place / entry.file).hexdigest() == entry.sha256
        except FileNotFoundError:
            return False
    return commands.find(engine, entry.image.image_id) is not None


def _doing(image: PinnedImage) -> str:
    return f"load image {image.reference!r} ({image.short})"


def _needs(entry: ArchivedImage, engine: str, place: Path) -> dict[Path, int]:
    """Return the room that a load takes, beside that of the archive, for which who brings it asks."""
    if engine not in STORES:
        return {}
    root = Path(commands.demand([engine, "info", "--format", STORES[engine].root]).strip())
    needs = {root: entry.image.size_bytes}
    unpacks = root if STORES[engine].unpacks_in_root else place
    return {**needs, unpacks: needs.get(unpacks, 0) + entry.image.size_bytes}


def _fetch(entry: ArchivedImage, archive: Path, engine: str, place: Path, copy: Path) -> None:
    image, doing = entry.image, _doing(entry.image)
    part = place / f".{archive.name}.part-{image.short}"
    unpacked = place / f".{archive.name}.part-unpacked-{image.short}"
    require(_needs(entry, engine, place), doing)
    try:
        if image.form in FILES:
            _link(copy, part)
            copy = part
        found = hash_file(copy)  # the list of chunks says nothing of what was pinned
        if (found.hexdigest(), found.bytes) != (entry.sha256, entry.bytes):
            raise errors.DigestMismatch(
                f"{doing}: {archive} has {found.bytes} bytes and SHA-256 {found.hexdigest()[:12]}..., its manifest promises {entry.bytes} "
                f"and {entry.sha256[:12]}...: it was cut or changed on storage; remove both, and archive the image again"
            )
        if image.form in FILES:
            publish.publish_file(part, place / entry.file)
        else:
            unpacked.mkdir(mode=0o700)
            feed_decompressed(copy, [engine, "load", "--quiet"], {**os.environ, "TMPDIR": str(unpacked)})
            _check_loaded(entry, engine)
    except OSError as error:
        if error.errno in system.DISK_FULL:
            raise not_enough(place, entry.bytes, doing) from error
        kind = errors.StorageError if error.errno in (*system.STORAGE_FAILS, errno.ENOENT) else errors.ContainerError
        raise kind(f"{doing}: {error.strerror}: {error.filename or archive}") from error
    finally:
        for left in (part, unpacked):
            publish.remove_leftover(left)


def _link(file: Path, name: Path) -> None:
    """Link the file, or copy it where its file system, or the rule that only owners give names, allows none."""
    try:
        name.hardlink_to(file)
    except OSError:
        copy_hashed(file, name)


def _check_loaded(entry: ArchivedImage, engine: str) -> None:
    image = entry.image
    if commands.find(engine, image.image_id) is None:
        raise errors.ContainerError(
            f"{engine} took the archive of image {image.reference!r} and does not know {image.image_id} afterwards: "
            f"was it archived by another engine ({image.engine}, {image.form})? archive it on a machine with {engine}"
        )
    commands.demand([engine, "tag", image.image_id.removeprefix("sha256:"), our_tag(image)], IMAGE_TAG_S)
