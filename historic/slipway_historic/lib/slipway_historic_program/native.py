"""The staged shards of the training split as a framework's own reader of LMDB takes them (`reader: native`)."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, List

import slipway_reader


@contextmanager
def opened_shards(dataset: Any, batch_size: int) -> Iterator[List[str]]:
    """Return a directory for each shard, which LMDB can open; a batch is made of equal parts of all.

    LMDB writes a lock beside the data, so each is one of its own with a link to the staged file, and is gone after this: who reads has
    opened it. Raises ValueError, and DatasetChanged for a file of another length, which would kill its reader.
    """
    split, manifest = dataset.split("train"), dataset.manifest
    if manifest["encoding"] == "raw" and manifest["layout"] != "caffe":
        raise ValueError(
            "reader native needs layout: caffe, or encoding: jpeg; the dataset has raw images of layout %s" % manifest["layout"]
        )
    if batch_size % len(split.paths):
        raise ValueError(
            "reader native takes equal parts of each batch from all shards of the training split: a batch of %d per process does not "
            "divide by its %d shards; choose another batch, or fewer `shards` of the dataset" % (batch_size, len(split.paths))
        )
    with tempfile.TemporaryDirectory(prefix="slipway-shards-") as directory:
        places = []
        for number, (path, num_bytes) in enumerate(zip(split.paths, split.bytes)):
            data = Path(path, "data.mdb")
            found = data.stat().st_size
            if found != num_bytes:
                raise slipway_reader.DatasetChanged("%s has %d bytes, its manifest says %d: stage it again" % (data, found, num_bytes))
            place = Path(directory, str(number))
            place.mkdir()
            os.symlink(str(data), str(place / "data.mdb"))
            places.append(str(place))
        yield places
