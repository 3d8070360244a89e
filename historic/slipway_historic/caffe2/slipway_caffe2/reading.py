"""Caffe2's own reader: DBReader and ImageInput on the staged shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from caffe2.python import core, workspace
from slipway_historic_program.native import opened_shards


def native_batches(dataset: Any, batch_size: int, rank: int, ranks: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield endlessly of each shard the samples rank, rank + ranks, ... in their order, again and again; normalised, in RGB. Raises
    ValueError for images that are no squares, which ImageInput would cut.
    """
    height, width = dataset.size
    if height != width:
        raise ValueError(
            "reader native: Caffe2's ImageInput makes squares of all images, and those of the dataset are %d x %d" % (height, width)
        )
    opening, reading = core.Net("opening"), core.Net("reading")
    colours = {
        "color": int(dataset.channels == 3),
        "mean_per_channel": [float(mean) for mean in dataset.mean[::-1]],  # Caffe's order: blue, green, red
        "std_per_channel": [max(float(deviation), 1.0) for deviation in dataset.std[::-1]],
    }
    with opened_shards(dataset, batch_size) as places:
        parts = []
        for number, place in enumerate(places):
            database = opening.CreateDB([], f"reading.database{number}", db=place, db_type="lmdb", num_shards=ranks, shard_id=rank)
            sizes = {"batch_size": batch_size // len(places), "scale": height, "crop": height}
            outputs = [f"reading.images{number}", f"reading.labels{number}"]
            parts.append(reading.ImageInput(database, outputs, use_caffe_datum=1, is_test=1, decode_threads=1, **sizes, **colours))
        images, labels = zip(*parts)
        reading.Concat(list(images), ["reading.images", "reading.parts"], axis=0)
        reading.Concat(list(labels), ["reading.labels", "reading.label_parts"], axis=0)
        reading.NHWC2NCHW("reading.images", "reading.planes")
        planes = [f"reading.plane{number}" for number in range(dataset.channels)]
        reading.Split("reading.planes", planes, axis=1)
        reading.Concat(planes[::-1], ["reading.ordered", "reading.order"], axis=1)
        workspace.RunNetOnce(opening)
    workspace.CreateNet(reading)
    while True:
        workspace.RunNet(reading)
        yield workspace.FetchBlob("reading.ordered"), workspace.FetchBlob("reading.labels").astype(np.int64)
