"""JSON in files: canonical bytes to hash, bounded reading with an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from base.errors import RecordError, SlipwayError
from base.publish import publish

MAX_BYTES = 256 << 20


def canonical_json(value: Any) -> bytes:
    """One value, one text: sorted keys, no spaces, UTF-8, no NaN. What is hashed is hashed in this form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def publish_json(target: Path, value: Any, mode: int = 0o644) -> None:
    """Publish `value` readable for people (sorted, indented), whole or not at all."""
    publish(target, json_text(value), mode)


def json_text(value: Any) -> bytes:
    """The text of a file for people: sorted, indented by one space, a newline at the end."""
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path, error: type[SlipwayError] = RecordError, max_bytes: int = MAX_BYTES) -> Any:
    """The value in `path`. Raises `error`, naming the file, when it is missing, too large, torn or too deep."""
    return parse_json(read_content(path, error, max_bytes), path, error)


def read_content(path: Path, error: type[SlipwayError] = RecordError, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of `path`. Raises `error`, naming the file, when it is missing or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror}") from reason
    if len(content) > max_bytes:
        raise error(f"{path} holds more than {max_bytes} bytes: this is not a file of ours")
    return content


def parse_json(content: bytes, path: Path, error: type[SlipwayError] = RecordError) -> Any:
    """The value in `content`, which was read from `path`. Raises `error`, naming the file, when it is torn or too deep."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as reason:
        raise error(
            f"{path} is not valid JSON ({reason}): it was cut or edited; remove it, and the step that writes it runs again"
        ) from reason
