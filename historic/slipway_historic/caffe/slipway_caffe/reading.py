"""Caffe's own reader: Data layers on the staged shards, with its threads, its parser and its way to divide samples among solvers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import caffe
import numpy as np
from caffe.proto import caffe_pb2
from slipway_historic_program.native import opened_shards

from .network import written

SCALED = "scaled"


def native_batches(dataset: Any, batch_size: int, rank: int, ranks: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield endlessly of each shard the samples rank, rank + ranks, ... in their order, again and again; normalised, in RGB."""
    with opened_shards(dataset, batch_size) as places, written(_net(dataset, places, batch_size // len(places))) as path:
        caffe.set_solver_count(ranks)  # of this thread, and of those that it starts: by them a Data layer knows its samples
        caffe.set_solver_rank(rank)
        try:
            net = caffe.Net(path, caffe.TRAIN)
        finally:
            caffe.set_solver_count(1)
            caffe.set_solver_rank(0)
    net.params[SCALED][0].data[...] = 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
    while True:
        net.forward()
        yield net.blobs[SCALED].data, net.blobs["labels"].data.astype(np.int64)


def _net(dataset: Any, places: Sequence[str], batch_size: int) -> Any:
    """Return the net that reads; `batch_size`: of each shard. Caffe keeps colours in the order blue, green, red."""
    net = caffe_pb2.NetParameter()
    images, labels = ([f"{what}{number}" for number in range(len(places))] for what in ("images", "labels"))
    for place, *tops in zip(places, images, labels):
        layer = net.layer.add(name=tops[0], type="Data", top=tops)
        layer.data_param.source, layer.data_param.backend = place, layer.data_param.LMDB
        layer.data_param.batch_size = batch_size
        layer.transform_param.mean_value[:] = [float(mean) for mean in dataset.mean[::-1]]
    net.layer.add(name="images", type="Concat", bottom=images, top=["images"]).concat_param.axis = 0
    net.layer.add(name="labels", type="Concat", bottom=labels, top=["labels"]).concat_param.axis = 0
    planes = [f"plane{number}" for number in range(dataset.channels)]
    net.layer.add(name="planes", type="Slice", bottom=["images"], top=planes).slice_param.axis = 1
    net.layer.add(name="ordered", type="Concat", bottom=planes[::-1], top=["ordered"]).concat_param.axis = 1
    net.layer.add(name=SCALED, type="Scale", bottom=["ordered"], top=[SCALED])
    return net
