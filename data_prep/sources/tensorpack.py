"""Read an LMDB of datapoints, as tensorpack's LMDBSerializer writes it: per key a list of image and label in msgpack, and `__keys__`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from base.errors import DatasetError
from data_prep.datapoint import DatapointError, parse_datapoint
from data_prep.sources.lmdb_file import LmdbReader, data_file, entries, listed
from data_prep.sources.naming import class_name
from data_prep.sources.types import BadSample, ListedSample, Pixels, Prepared, Refused, Root

VALUES: Final = "datapoint"
KEYS: Final = "__keys__"


def prepare(root: Root) -> Prepared:
    """Find the data file; where its first value is none that can be read, none of them is."""
    data = data_file(root.path)
    if data is None:
        raise DatasetError(f"{root.path} holds no LMDB: source: tensorpack wants the directory with data.mdb, or the file itself")
    first = next(entries(data, VALUES), None)
    if first is None or isinstance(first, Refused):
        raise DatasetError(f"{data}: {'it is empty' if first is None else f'its first value, of key {first.name!r}: {first.reason}'}")
    return Prepared(files=(data,))


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List one sample per key; classes are the labels."""
    num_values = 0
    for entry in entries(prepared.files[0], VALUES):
        if isinstance(entry, Refused):
            num_values += 1
            yield entry
            continue
        if "listed" in entry:
            if entry["listed"] is not None and entry["listed"] > num_values:  # it writes no key after this one, which sorts last
                yield Refused(KEYS, f"it lists {entry['listed']} keys, and {num_values} are there: tensorpack lost the others")
            continue
        num_values += 1
        yield listed(entry, class_name(entry["label"]), root.whole)


def open_reader(_root: Root, prepared: Prepared) -> DatapointReader:
    """Open a reader, which starts a child process."""
    return DatapointReader(prepared.files)


class DatapointReader(LmdbReader):
    """A reader of values that are datapoints."""

    def read(self, found: ListedSample) -> bytes | Pixels:
        """Return the encoded image, or pixels (H, W)."""
        try:
            return parse_datapoint(memoryview(self.value(found))).image
        except DatapointError as error:
            raise BadSample(str(error)) from error
