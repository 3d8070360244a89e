"""Bring a checkpoint or a file of parameters from storage to a node: runs in a short-lived child with a time limit."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from base.errors import DigestMismatch, StagingError, StorageError
from base.units import format_size
from base.untrusted import Unusable, open_file

READ_BYTES = 4 << 20


def fetch_file(source: str, target: str, num_bytes: int, digest: str) -> None:
    """Copy the file, hashing it. Raises DigestMismatch when it is not what was expected, StagingError when it is not there or the node
    takes it not, StorageError when storage fails. What is not whole is removed."""
    try:
        found = _copy(source, target, num_bytes)
    except FileNotFoundError as error:
        raise DigestMismatch(f"the file {source} is not there any more") from error
    except Unusable as error:
        raise DigestMismatch(f"the file {source} is no file any more: {error.strerror}") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(target).unlink()
        if error.filename == target or error.filename is None:
            raise StagingError(f"the file {source} cannot be copied to {target}: {error.strerror}") from error
        raise StorageError(f"the file {source} cannot be read: {error.strerror}") from error
    if found != (num_bytes, digest):
        Path(target).unlink(missing_ok=True)
        raise DigestMismatch(
            f"the file {source} is damaged or was changed: found {format_size(found[0])} with hash {found[1][:12]}, "
            f"expected {format_size(num_bytes)} with {digest[:12]}"
        )


def _copy(source: str, target: str, most: int) -> tuple[int, Any]:
    """Bytes and hash of what was copied: all, or a little more than `most`."""
    from blake3 import blake3

    hasher, count = blake3(), 0
    with os.fdopen(open_file(Path(source)), "rb", buffering=0) as file, open(target, "wb") as copy:
        while count <= most and (block := _read(file.fileno(), source)):
            hasher.update(block)
            copy.write(block)
            count += len(block)
    return count, hasher.hexdigest()


def _read(descriptor: int, source: str) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError as error:
        error.filename = source
        raise
