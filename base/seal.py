"""Seal a record by a hash over its own text, so that readers notice a change.

The file is JSON as publish_json writes it, and among its first-level keys, on a line of its own, `"seal"`: the SHA-256 of all the other
lines. `grep -v '^ "seal": ' record.json | sha256sum` says the same. The text is hashed, not the value: nobody needs to agree how a
number is written, and 100,000 records are checked in a second. A record from before there were seals has none, and is read as it is.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from base import jsonfile, publish
from base.errors import PushError, RecordError

KEY: Final = "seal"
SealState = Literal["sealed", "unsealed", "broken"]
_LINE: Final = re.compile(rb'\n "seal": "([^"\n]*)",?(?=\n)')  # deeper keys are indented by more than one space
_EMPTY: Final = "0" * 64


def sealed_text(value: Mapping[str, Any]) -> bytes:
    """Return the text of a file for `value` with its seal; a seal that it already has is made anew."""
    text = jsonfile.json_text({**value, KEY: _EMPTY})
    return text.replace(f'\n "{KEY}": "{_EMPTY}"'.encode(), f'\n "{KEY}": "{_hash(text)}"'.encode(), 1)


def seal_state(content: bytes) -> SealState:
    """Return `unsealed` for a file without a seal, and `broken` if the other lines are not those that were sealed, or the seal is not on a
    line of its own: an editor's, jq's or json.dump's way to write the value."""
    line = _LINE.search(content)
    if line is None:
        return "broken" if f'"{KEY}"'.encode() in content and _has_seal(content) else "unsealed"
    view = memoryview(content)
    hasher = hashlib.sha256(view[: line.start()])
    hasher.update(view[line.end() :])
    return "sealed" if line[1] == hasher.hexdigest().encode() else "broken"


def read_sealed_bytes(path: Path) -> bytes:
    """Read the bytes of the file, for whoever copies it. Raises RecordError when it cannot be read or its seal does not fit."""
    content = jsonfile.read_content(path, RecordError)
    if seal_state(content) == "broken":
        raise RecordError(
            f"{path} is not what was written: its seal does not fit; it was edited, or storage does not keep what it was given; "
            "another copy of it lies in the directory of its attempt (or of its run)"
        )
    return content


def read_sealed(path: Path) -> Any:
    """Read the value in the file, seal included. Raises RecordError, naming it, when it cannot be read or its seal does not fit."""
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


def _has_seal(content: bytes) -> bool:
    """Return True if the object has the key; False for what is no JSON, since its reader says so."""
    try:
        value = jsonfile.parse_json(content, "", RecordError)
    except RecordError:
        return False
    return isinstance(value, dict) and KEY in value


def _hash(content: bytes) -> str:
    return hashlib.sha256(_LINE.sub(b"", content, count=1)).hexdigest()
