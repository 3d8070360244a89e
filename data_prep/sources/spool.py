"""Unpack a compressed file, which cannot be read in place, to a plain one in the build directory, with limits of size and ratio."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from base import publish, system
from base.errors import DatasetError
from data_prep.free_space import not_enough_space

MAX_RATIO = 200
FREE_OF_RATIO = 16 << 20  # small archives of empty blocks may be packed better
MAX_BYTES = 16 << 40
_BLOCK = 1 << 20
_DECODERS: Mapping[str, Callable[[], Any]] = {"bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


def compression(path: Path) -> str | None:
    """Return gzip, bzip2 or xz by the first bytes, or None for a plain file. Raises DatasetError for unsupported formats."""
    with path.open("rb") as file:
        head = file.read(8)
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if found in ("zstd", "zip"):
        raise DatasetError(f"{path} is packed with {found}, which is not read here: unpack it, or repack it with gzip, bzip2 or xz")
    return found


def plain_file(path: Path, scratch: Path) -> Path:
    """Return `path` itself if it is not compressed, else a file below `scratch` with its content. Raises DatasetError, NotEnoughSpace."""
    kind = compression(path)
    return path if kind is None else write_scratch(scratch / f"{path.name}.plain", _bounded(path, kind))


def write_scratch(target: Path, chunks: Iterable[bytes]) -> Path:
    """Write a scratch file with these bytes, whole or not at all. Raises NotEnoughSpace."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = publish.part_path(target)
    written = 0
    try:
        with part.open("xb") as out:
            for chunk in chunks:
                out.write(chunk)
                written += len(chunk)
        publish.publish_file(part, target)
    except OSError as error:
        if error.errno in system.DISK_FULL:
            raise not_enough_space(target.parent, max(written, _BLOCK), f"unpacking into {target}") from error
        raise DatasetError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _bounded(path: Path, kind: str) -> Iterator[bytes]:
    packed = path.stat().st_size
    limit = min(MAX_BYTES, max(FREE_OF_RATIO, packed * MAX_RATIO))
    total = 0
    try:
        with path.open("rb") as file:
            for chunk in _chunks(file, kind):
                total += len(chunk)
                if total > limit:
                    raise DatasetError(
                        f"{path} unpacks to more than {limit} bytes from {packed}: this is no archive of images, it is refused"
                    )
                yield chunk
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise DatasetError(f"{path} is damaged: {kind} says {error} after {total} bytes; fetch it again") from error
    except OSError as error:
        if error.errno is None:  # bz2 says OSError("Invalid data stream")
            raise DatasetError(f"{path} is damaged: {kind} says {error} after {total} bytes; fetch it again") from error
        raise


def _chunks(file: BinaryIO, kind: str) -> Iterator[bytes]:
    if kind == "gzip":
        with gzip.open(file) as stream:
            while chunk := stream.read(_BLOCK):
                yield chunk
        return
    yield from _streams(file, _DECODERS[kind])


def _streams(file: BinaryIO, new_decoder: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress streams one after the other, which may be padded. lzma.open and bz2.open take padding, or a damaged stream, for the end of
    the file."""
    decoder, data, begun = new_decoder(), b"", False
    while data := data or file.read(_BLOCK):
        data = data if begun else data.lstrip(b"\0")
        begun = begun or bool(data)
        while data or not (decoder.eof or decoder.needs_input):
            yield decoder.decompress(data, _BLOCK)
            data = b""
        if decoder.eof:
            decoder, data, begun = new_decoder(), decoder.unused_data, False
    if begun:
        raise EOFError("the file is cut")
