"""Read an LMDB of Caffe Datums, as convert_imageset and DIGITS write it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from base.errors import DatasetError
from data_prep.image_header import sniff
from data_prep.reader.datum import parse
from data_prep.reader.errors import DatumError
from data_prep.sources.lmdb_file import LmdbReader, data_file, entries, listed
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
    jpeg = first["head"] is not None and sniff(bytes.fromhex(first["head"])) == "JPEG"
    return Prepared(files=(data,), facts={"encoding": "jpeg" if jpeg else "raw", "channels": 1 if first["channels"] == 1 else 3})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List one sample per key; classes are the labels."""
    for entry in entries(prepared.files[0], VALUES):
        if isinstance(entry, Refused):
            yield entry
            continue
        found = listed(entry, str(entry["label"]), root.whole)
        shape = (entry["channels"], entry["height"], entry["width"])
        if entry["head"] is None and not isinstance(found, Refused) and (shape[0] not in (1, 3) or min(shape) <= 0):
            found = Refused(found.name, f"a Datum of {shape[0]} x {shape[1]} x {shape[2]} is not an image")
        yield found


def open_reader(_root: Root, prepared: Prepared) -> DatumReader:
    """Open a reader, which starts a child process."""
    return DatumReader(prepared.files)


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
