"""Archive an image on storage, once, named by content: `<storage>/images/<id12>.tar.zst` (or .sif, .sqsh), the list of its chunks
`<file>.chunks.json`, by which nodes pass it on, and its manifest `<file>.json`.

The manifest is written last: an archive without one is not there.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from base import chunks, jsonfile, publish, system
from base.errors import ContainerError, RecordError, StorageError
from containers.images.commands import save_argv
from containers.images.model import FILES, ArchivedImage, PinnedImage, manifest_path, read_manifest
from containers.images.streams import HashingWriter, copy_hashed, not_enough, require, save_compressed
from containers.limits import ARCHIVER_DEAD_S

DIRECTORY: Final = "images"


def archive(image: PinnedImage, storage: Path) -> Path:
    """Write the archive unless it lies there whole, and return its path. Raises NotEnoughSpace, ContainerError, StorageError. Two at once
    do the work twice and publish the same content under the same name.
    """
    target = storage / DIRECTORY / image.file_name
    doing = f"archive image {image.reference!r} ({image.short}) on storage"
    try:
        if is_there(image, target):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_dead_parts(target.parent)
        require({target.parent: image.size_bytes}, doing)
        written = _write(image, target)
        entry = ArchivedImage(image=image, file=target.name, sha256=written.hexdigest(), bytes=written.bytes)
        jsonfile.publish_json(chunks.chunks_path(target), written.chunk_list(target.name))
        jsonfile.publish_json(manifest_path(target), entry)
    except OSError as error:
        if error.errno in system.DISK_FULL:
            raise not_enough(target.parent, image.size_bytes, doing) from error
        raise StorageError(f"{doing}: {error.strerror}: {error.filename or target}") from error
    return target


def is_there(image: PinnedImage, target: Path) -> bool:
    """Compare manifest and size: an archive that was cut is made again; a changed byte is found by every node before it loads."""
    try:
        found = read_manifest(target)
        is_whole = found.image.image_id == image.image_id and target.stat().st_size == found.bytes
        return is_whole and chunks.chunks_path(target).is_file()
    except (RecordError, FileNotFoundError):
        return False


def remove_dead_parts(directory: Path) -> None:
    """Remove the parts of archivers that were killed: a living one writes all the time, or gives up. By the storage's own clock."""
    now = system.now_at(directory)
    for part in directory.glob(".*.part-*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if now - part.lstat().st_mtime > ARCHIVER_DEAD_S:
                part.unlink()


def _write(image: PinnedImage, target: Path) -> HashingWriter:
    part = publish.part_path(target)
    if image.form in FILES:
        writer = copy_hashed(Path(image.source), part)
        if f"sha256:{writer.hexdigest()}" != image.image_id:
            part.unlink(missing_ok=True)
            raise ContainerError(f"{image.source} is not the file any more that was pinned as {image.image_id}; run again")
    else:
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                writer = HashingWriter(file)
                save_compressed(save_argv(image), writer)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    publish.publish_file(part, target)
    return writer
