"""Read LMDB files of unknown origin for the sources that are made of them: a list of the entries, and single values."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from base.errors import DatasetError
from base.process import PipedChild, last_lines
from data_prep import image_header, lmdb_child
from data_prep.sources.naming import to_text
from data_prep.sources.types import MAX_MEMBER_BYTES, MAX_MEMBERS, ListedSample, Pixels, Refused


def data_file(path: Path) -> Path | None:
    """Find the file of the LMDB that a path names, which is a directory with it or the file itself."""
    data = path / "data.mdb" if path.is_dir() else path
    return data if data.is_file() else None


def entries(path: Path, values: str) -> Iterator[dict[str, Any] | Refused]:
    """List what data_prep.lmdb_child reports of every entry. `values` says what they should be. Raises DatasetError."""
    with child(values, path) as process:
        for number, line in enumerate(process.answers):
            if number >= MAX_MEMBERS:
                raise DatasetError(f"{path} holds more than {MAX_MEMBERS} entries")
            if not line.endswith(b"\n"):
                break
            entry = json.loads(line)
            yield Refused(key_text(entry["key"]), entry["reason"]) if "reason" in entry else entry
        if process.process.wait() != 0:
            raise _died(path, process)


def key_text(key: str) -> str:
    """Convert a key from the child's form to text."""
    return to_text(key.encode("latin-1"))


def listed(entry: dict[str, Any], label: str, split: str | None, number: int = 0, prefix: str = "") -> ListedSample | Refused:
    """Return an entry of file `number` as a sample, or why it cannot be one. Its `head` has the first bytes of the image file, in hex, and
    is None if it holds pixels. The sample is called after its key, with the prefix."""
    name, head = prefix + key_text(entry["key"]), entry["head"]
    if entry["bytes"] > MAX_MEMBER_BYTES:
        return Refused(name, f"larger than {MAX_MEMBER_BYTES >> 20} MiB")
    if head is not None and image_header.sniff(bytes.fromhex(head)) is None:
        return Refused(name, "not an image of a listed format")
    return ListedSample(name, label, entry["bytes"], 0, (entry["key"], number), split)


def child(mode: str, *paths: Path) -> PipedChild:
    """Start a process that reads the files."""
    return PipedChild("data_prep.lmdb_child", mode, *map(str, paths), stderr=subprocess.PIPE)


def _died(path: Path, process: PipedChild) -> DatasetError:
    _, errors = process.process.communicate()
    code = process.process.returncode
    how = (
        f"its reader died with {signal.Signals(-code).name}"
        if code < 0
        else last_lines(errors.decode(errors="replace"), 1) or f"code {code}"
    )
    if os.strerror(errno.EACCES) in how:
        return DatasetError(f"{path} may not be read: {how}; ask its owner, or see `ls -l` and the directories above it")
    return DatasetError(f"{path} is damaged or no LMDB: {how}; the file is probably cut, copy it again")


class LmdbReader:
    """A reader of values; `at` is (key as latin-1, number of the file)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self.child = paths, child("serve", *paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.child.__exit__(*error)

    def head(self, found: ListedSample, limit: int) -> bytes:
        return self.value(found)[:limit]

    def read(self, found: ListedSample) -> bytes | Pixels:
        """Return the value, which is an image file."""
        return self.value(found)

    def value(self, found: ListedSample) -> bytes:
        """Read a whole value. Raises DatasetError where the source is not what was listed."""
        answers = self.child.answers
        key, number = str(found.at[0]).encode("latin-1"), int(found.at[1])
        path = self.paths[number]
        try:
            self.child.ask(lmdb_child.FRAME.pack(number, len(key)) + key)
            head = answers.read(lmdb_child.LENGTH.size)
        except BrokenPipeError as error:
            raise _died(path, self.child) from error
        if len(head) < lmdb_child.LENGTH.size:
            raise _died(path, self.child)
        if lmdb_child.LENGTH.unpack(head)[0] != found.size:  # before it is read: a changed entry may have gigabytes
            raise DatasetError(f"{path}: key {found.name!r} has changed since the source was listed; build it afresh")
        value = answers.read(found.size)
        if len(value) != found.size:
            raise _died(path, self.child)
        return value
