"""The list of the files that one node delivered, written beside them by that node. Whoever makes a record of the files compares them with
it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from blake3 import blake3

from base.errors import StorageError
from base.jsonfile import json_text, read_json
from base.publish import publish
from base.typed import Count, Digest, read_as

SCHEMA: Final = "slipway.delivered/1"
MAX_BYTES: Final = 64 << 20


class _File(TypedDict):
    path: str
    bytes: Count
    blake3: Digest


class _List(TypedDict):
    schema: Literal["slipway.delivered/1"]
    files: list[_File]


def list_name(attempt: str) -> str:
    """Pure: of the list of what was delivered as `attempt`, such as `3` or `3.node-1`."""
    return f"delivered-{attempt}.json"


def write_list(part: Path, attempt: str, files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the list into `part`; its own path, bytes and hash. Raises StorageError."""
    name, content = list_name(attempt), json_text({"schema": SCHEMA, "files": [dict(file) for file in files]})
    try:
        publish(part / name, content)
    except OSError as error:
        raise StorageError(f"{part / name} cannot be written: {error.strerror}; the result stays on the node") from error
    return {"path": name, "bytes": len(content), "blake3": blake3(content).hexdigest()}


def read_list(directory: Path, attempt: str) -> list[dict[str, Any]]:
    """What was delivered as `attempt` and lies in `directory`, the list itself too. Raises RecordError."""
    path = directory / list_name(attempt)
    found = read_as(_List, read_json(path, max_bytes=MAX_BYTES), path)
    content = json_text(dict(found))
    own = {"path": path.name, "bytes": len(content), "blake3": blake3(content).hexdigest()}
    return [*map(dict, found["files"]), own]
