"""Read an LMDB of Caffe Datums, as convert_imageset and DIGITS write it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from base.errors import DatasetError
from data_prep.image_header import sniff
from data_prep.reader.datum import parse
from data_prep.reader.errors import DatumError
from data_prep.sources.lmdb_file import LmdbReader, data_file, entries, entry_reason, key_text
from data_prep.sources.types import BadSample, ListedSample, Pixels, Prepared, Refused, Root

VALUES = "datum"


def prepare(root: Root) -> Prepared:
    """Find the data file; the first image says how the dataset is encoded."""
    data = data_file(root.path)
    if data is None:
        raise DatasetError(f"{root.path} holds no LMDB: source: caffe-lmdb wants the directory with data.mdb")
    first = next((entry for entry in entries(data, VALUES) if isinstance(entry, dict)), None)
    if first is None:
        raise DatasetError(f"{data} holds no Datum of an image")
    jpeg = first["encoded"] and sniff(bytes.fromhex(first["head"])) == "JPEG"
    return Prepared(files=(data,), facts={"encoding": "jpeg" if jpeg else "raw", "channels": 1 if first["channels"] == 1 else 3})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List one sample per key; classes are the labels."""
    for entry in entries(prepared.files[0], VALUES):
        if isinstance(entry, Refused):
            yield entry
            continue
        name = key_text(entry["key"])
        reason = _reason(entry)
        found = ListedSample(name, str(entry["label"]), entry["bytes"], 0, (entry["key"], 0), root.whole)
        yield Refused(name, reason) if reason else found


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager[DatumReader]:
    """Open a reader, which starts a child process."""
    return DatumReader(prepared.files)


def _reason(entry: dict[str, Any]) -> str | None:
    if reason := entry_reason(entry["bytes"], entry["head"] if entry["encoded"] else None):
        return reason
    if entry["encoded"]:
        return None
    shape = (entry["channels"], entry["height"], entry["width"])
    return None if shape[0] in (1, 3) and min(shape) > 0 else f"a Datum of {shape[0]} x {shape[1]} x {shape[2]} is not an image"


class DatumReader(LmdbReader):
    """A reader of Datums."""

    def read(self, found: ListedSample) -> bytes | Pixels:
        """Return the encoded image, or pixels (H, W, C), RGB."""
        try:
            datum = parse(self.value(found))
        except DatumError as error:
            raise BadSample(f"no Datum of an image: {error}") from error
        if datum.encoded:
            return bytes(datum.data)
        planes = np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width)
        return planes[::-1].transpose(1, 2, 0)  # BGR planes to RGB
