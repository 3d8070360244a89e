"""An LMDB of Caffe Datums, as convert_imageset and DIGITS write it: taken as it is, or converted like any other images."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from base.command import last_lines
from base.errors import DatasetError
from base.piped import PipedChild
from data_prep.image_header import sniff
from data_prep.lmdb_child import LENGTH
from data_prep.reader.datum import parse
from data_prep.reader.errors import DatumError
from data_prep.sources.naming import to_text
from data_prep.sources.types import MAX_MEMBER_BYTES, MAX_MEMBERS, BadSample, Found, Pixels, Prepared, Refused, Root


def prepare(root: Root) -> Prepared:
    """Find the data file; the first image says how the dataset is encoded."""
    data = root.path / "data.mdb" if root.path.is_dir() else root.path
    if not data.is_file():
        raise DatasetError(f"{root.path} holds no LMDB: source: caffe-lmdb wants the directory with data.mdb")
    first = next((entry for entry in _entries(data) if isinstance(entry, dict)), None)
    if first is None:
        raise DatasetError(f"{data} holds no Datum of an image")
    jpeg = first["encoded"] and sniff(bytes.fromhex(first["head"])) == "JPEG"
    return Prepared(files=(data,), facts={"encoding": "jpeg" if jpeg else "raw", "channels": 1 if first["channels"] == 1 else 3})


def scan(root: Root, prepared: Prepared) -> Iterator[Found | Refused]:
    """One sample per key; classes are the labels."""
    for entry in _entries(prepared.files[0]):
        if isinstance(entry, Refused):
            yield entry
            continue
        name = to_text(entry["key"].encode("latin-1"))
        reason = _reason(entry)
        found = Found(name, str(entry["label"]), entry["bytes"], 0, (entry["key"],), root.whole)
        yield Refused(name, reason) if reason else found


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager[LmdbReader]:
    """A child process reads."""
    return LmdbReader(prepared.files[0])


def estimate(_root: Root) -> int | None:
    """Unknown: the file is not opened in this process."""
    return None


def _reason(entry: dict[str, Any]) -> str | None:
    if entry["bytes"] > MAX_MEMBER_BYTES:
        return f"larger than {MAX_MEMBER_BYTES >> 20} MiB"
    if entry["encoded"]:
        return None if sniff(bytes.fromhex(entry["head"])) else "not an image of a listed format"
    shape = (entry["channels"], entry["height"], entry["width"])
    return None if shape[0] in (1, 3) and min(shape) > 0 else f"a Datum of {shape[0]} x {shape[1]} x {shape[2]} is not an image"


def _child(path: Path, mode: str) -> PipedChild:
    return PipedChild("data_prep.lmdb_child", str(path), mode, stderr=subprocess.PIPE)


def _died(path: Path, child: PipedChild) -> DatasetError:
    _, errors = child.process.communicate()
    code = child.process.returncode
    how = (
        f"its reader died with {signal.Signals(-code).name}"
        if code < 0
        else last_lines(errors.decode(errors="replace"), 1) or f"code {code}"
    )
    return DatasetError(f"{path} is damaged or no LMDB: {how}; the file is probably cut, copy it again")


def _entries(path: Path) -> Iterator[dict[str, Any] | Refused]:
    with _child(path, "scan") as child:
        for number, line in enumerate(child.answers):
            if number >= MAX_MEMBERS:
                raise DatasetError(f"{path} holds more than {MAX_MEMBERS} entries")
            if not line.endswith(b"\n"):
                break
            entry = json.loads(line)
            yield Refused(to_text(entry["key"].encode("latin-1")), entry["reason"]) if "reason" in entry else entry
        if child.process.wait() != 0:
            raise _died(path, child)


class LmdbReader:
    """`at` is the key, as latin-1."""

    def __init__(self, path: Path) -> None:
        self.path, self.child = path, _child(path, "serve")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.child.__exit__(kind, error, trace)

    def head(self, found: Found, limit: int) -> bytes:
        """See Reader."""
        return self._value(found)[:limit]

    def read(self, found: Found) -> bytes | Pixels:
        """The encoded image, or pixels (H, W, C), RGB."""
        try:
            datum = parse(self._value(found))
        except DatumError as error:
            raise BadSample(f"no Datum of an image: {error}") from error
        if datum.encoded:
            return bytes(datum.data)
        planes = np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)
        return planes[::-1].transpose(1, 2, 0)  # BGR planes to RGB

    def _value(self, found: Found) -> bytes:
        answers = self.child.answers
        key = str(found.at[0]).encode("latin-1")
        try:
            self.child.ask(LENGTH.pack(len(key)) + key)
            head = answers.read(LENGTH.size)
        except BrokenPipeError as error:
            raise _died(self.path, self.child) from error
        if len(head) < LENGTH.size:
            raise _died(self.path, self.child)
        if LENGTH.unpack(head)[0] != found.size:  # before it is read: a changed entry may have gigabytes
            raise DatasetError(f"{self.path}: key {found.name!r} has changed since the source was listed; build it afresh")
        value = answers.read(found.size)
        if len(value) != found.size:
            raise _died(self.path, self.child)
        return value
