"""Seal a record by a hash over its own text, so that readers notice a change.

The file is JSON as publish_json writes it, and among its first-level keys, on a line of its own, `"seal"`: the SHA-256 of all the other
lines. `grep -v '^ "seal": ' record.json | sha256sum` says the same. The text is hashed, not the value: nobody needs to agree how a
number is written, and 100,000 records are checked in a second. A record from before there were seals has none, and is read as it is; it is
recognized by the keys that it lacks, so that nobody removes a seal to change what it holds.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from base import jsonfile, publish
from base.errors import PushError, RecordError

KEY: Final = "seal"
SealState = Literal["sealed", "unsealed", "broken", "removed"]
WRONG: Final[dict[SealState, str]] = {"broken": "its seal does not fit", "removed": "its seal was removed"}
SINCE: Final = ("busy", "failed_nodes", "model_macs", "steps_source", "window_seen")
"""Keys that only sealed records have: an unsealed record with one of them has lost its seal."""
_LINE: Final = re.compile(rb'^ "seal": "([^"\n]*)",?\n', re.MULTILINE)  # deeper keys are indented by more than one space
_BEGIN: Final = b'\n "seal": "'  # the first line is a bracket
_NAMES: Final = re.compile(rb'"(?:%s)"|\\u' % "|".join((KEY, *SINCE)).encode())  # any name may be written with escapes
_EMPTY: Final = "0" * 64


def sealed_text(value: Mapping[str, Any]) -> bytes:
    """Return the text of a file for `value` with its seal; a seal that it already has is made anew."""
    text = jsonfile.json_text({**value, KEY: _EMPTY})
    return text.replace(f'\n "{KEY}": "{_EMPTY}"'.encode(), f'\n "{KEY}": "{_hash(text)}"'.encode(), 1)


def seal_state(content: bytes) -> SealState:
    """Return `unsealed` for a file of a version without seals, `removed` if a later one has none, and `broken` if the other lines are not
    those that were sealed, or the seal is not on a line of its own: an editor's, jq's or json.dump's way to write the value."""
    line = _line(content)
    if line is None:
        keys = _keys(content) if _NAMES.search(content) else set()
        return "broken" if KEY in keys else "removed" if keys.intersection(SINCE) else "unsealed"
    view = memoryview(content)
    hasher = hashlib.sha256(view[: line.start()])
    hasher.update(view[line.end() :])
    return "sealed" if line[1] == hasher.hexdigest().encode() else "broken"


def read_sealed_bytes(path: Path) -> bytes:
    """Read the bytes of the file, for whoever copies it. Raises RecordError when it cannot be read or its seal is WRONG."""
    content = jsonfile.read_content(path, RecordError)
    if (state := seal_state(content)) in WRONG:
        raise RecordError(
            f"{path} is not what was written: {WRONG[state]}; it was edited, or storage does not keep what it was given; "
            "another copy of it lies in the directory of its attempt (or of its run)"
        )
    return content


def read_sealed(path: Path) -> Any:
    """Read the value in the file, seal included. Raises RecordError, naming it, when it cannot be read or its seal is WRONG."""
    return jsonfile.parse_json(read_sealed_bytes(path), path, RecordError)


def publish_sealed(target: Path, value: Mapping[str, Any]) -> None:
    """Publish `value` with its seal. Raises OSError, PushError when what lies there then is something else."""
    publish_checked(target, sealed_text(value))


def publish_checked(target: Path, content: bytes) -> None:
    """Publish content, and read it back past this machine's page cache. Raises OSError, PushError when something else is there."""
    publish.publish(target, content)
    compare_with_disk(target, content)


def compare_with_disk(path: Path, content: bytes) -> None:
    """Raise PushError when the file does not hold `content`, read from the disk rather than from memory; OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        found = file.readall()
    if found != content:
        raise PushError(f"{path} is not what was written into it ({len(found)} bytes, {len(content)} were written): storage changed it")


def _line(content: bytes) -> re.Match[bytes] | None:
    """Find the line of the seal. Searching for its text first takes a tenth of the time of the pattern."""
    place = content.find(_BEGIN)
    while place >= 0:
        if found := _LINE.match(content, place + 1):
            return found
        place = content.find(_BEGIN, place + 1)
    return None


def _keys(content: bytes) -> set[str]:
    """Return the keys of the object; none for what is no JSON, since its reader says so."""
    try:
        value = jsonfile.parse_json(content, "", RecordError)
    except RecordError:
        return set()
    return set(value) if isinstance(value, dict) else set()


def _hash(content: bytes) -> str:
    return hashlib.sha256(_LINE.sub(b"", content, count=1)).hexdigest()
