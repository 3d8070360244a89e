"""Read and write JSON: canonical bytes to hash; writing that fails for no character; bounded reading that names the file."""

import json
import math
import os
import re
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from base import publish, sanitize, untrusted
from base.errors import RecordError, SlipwayError

T = TypeVar("T")
MAX_BYTES: Final = 256 << 20
PIECE: Final = 1 << 20
MADE_AGAIN: Final = "remove it, and the step that writes it runs again"
MAX_INTEGER: Final = 2**63 - 1
_LONG_NUMBER: Final = re.compile(rb"\d{19}")
_NOT_ASCII: Final = re.compile("[^\x00-\x7f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def canonical_json(value: Any) -> bytes:
    """Encode a value in the one form that is hashed: sorted keys, no spaces, UTF-8, no NaN."""
    return _encoded(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Convert a value of frozen types to what JSON can carry."""
    return msgspec.to_builtins(value, enc_hook=os.fspath)


def from_plain(found: Any, kind: type[T]) -> T:
    """Convert back what `plain` has made."""
    return msgspec.convert(found, kind, dec_hook=lambda _, path: Path(path))


def publish_json(target: Path, value: Any, mode: int = 0o644) -> None:
    """Publish `value` readable for people (sorted, indented), whole or not at all. NaN and infinity are written as null."""
    publish.publish(target, json_text(value), mode)


def json_text(value: Any) -> bytes:
    """Encode a value as the text of a file for people: sorted, indented by one space, with a newline at the end."""
    return _encoded(_dumps(value, sort_keys=True, indent=1) + "\n")


def json_line(value: Any) -> bytes:
    """Encode a value as one line of ASCII with its newline, for pipes and sockets. NaN and infinity are written as null."""
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], _escaped(_dumps(value, separators=(",", ":")))).encode() + b"\n"


def _dumps(value: Any, **layout: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain, **layout)
    except ValueError:
        return json.dumps(_finite(plain(value)), ensure_ascii=False, allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _encoded(text: str) -> bytes:
    r"""Encode a text as UTF-8. Bytes of a name that are not UTF-8 are written as people read them, `\xff`."""
    return _escaped(text).encode()


def _escaped(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub(lambda match: json.dumps(sanitize.printable(match[0]))[1:-1], text)


def read_json(path: Path, error: type[SlipwayError] = RecordError, max_bytes: int = MAX_BYTES) -> Any:
    """Read the value in `path` by `parse_json`. Raises `error`, naming the file, also when it is missing or too large."""
    return parse_json(read_content(path, error, max_bytes), path, error)


def read_content(path: Path, error: type[SlipwayError] = RecordError, max_bytes: int = MAX_BYTES) -> bytes:
    """Read all bytes of `path`. Raises `error`, naming the file, when it cannot be read or holds more than `max_bytes`."""
    try:
        with os.fdopen(untrusted.open_plain(path), "rb") as file:
            content = _read(file, max_bytes + 1)
    except (OSError, ValueError) as reason:  # ValueError: no path at all
        raise error(f"{path} cannot be read: {getattr(reason, 'strerror', None) or reason}") from reason
    if len(content) > max_bytes:
        raise error(f"{path} holds more than {max_bytes} bytes: this is not a file of ours")
    return content


def _read(file: IO[bytes], most: int) -> bytes:
    """Read to the end, or `most` bytes, piece by piece: read(n) reserves n bytes first, which fails where a job's address space is limited
    (Grid Engine's h_vmem)."""
    pieces: list[bytes] = []
    while most > 0 and (piece := file.read(min(PIECE, most))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def parse_json(content: bytes, where: Path | str, error: type[SlipwayError] = RecordError, advice: str = MADE_AGAIN) -> Any:
    """Parse `content`, which came from `where`, to a value whose texts can be written as UTF-8 and whose numbers fit into 64 bits.
    Raises `error`, which begins with `where`, for anything else: torn, no UTF-8, NaN, a number of 400 digits."""
    try:
        value = msgspec.json.decode(content)
        if _LONG_NUMBER.search(content):
            _check_numbers(value)
    except (msgspec.DecodeError, ValueError, RecursionError) as reason:
        raise error(f"{where} is not valid JSON ({reason}): it was cut or edited; {advice}") from reason
    return value


def _check_numbers(value: Any) -> None:
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError("a number in it is too large")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)
