"""A network from a layer list, as a prototxt of Caffe. Parameters have the layouts of Caffe, which are the canonical ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caffe.proto import caffe_pb2
from slipway_program.parameters import Layer

FACTOR = ".factor"
SCALE = "/scale"
"""Caffe has batch normalisation in two layers; the second one, with the parameters, has this behind its name."""
OF_BATCH = ("running_mean", "running_var", FACTOR[1:])


def training_net(layers: Sequence[Layer], batch_size: int) -> Any:
    """Return the layers and the mean cross entropy of their last one. Data and labels are blobs that are written to before each step."""
    net = _net(layers, batch_size, training=True)
    _add(net, "label", "Input", []).input_param.shape.add().dim[:] = [batch_size]
    _add(net, "loss", "SoftmaxWithLoss", [layers[-1]["name"], "label"])
    return net


def evaluation_net(layers: Sequence[Layer], batch_size: int) -> Any:
    """Return the layers as they are outside of training."""
    return _net(layers, batch_size, training=False)


def blobs_of(layers: Sequence[Layer], net: Any) -> dict[str, Any]:
    """Return the blobs of the net by canonical name, in its own order: parameters, the statistics of batches, and what Caffe divides these
    by.
    """
    kinds = {layer["name"]: layer["kind"] for layer in layers}
    return {
        f"{name[: -len(SCALE)] if name.endswith(SCALE) else name}.{what}": blob
        for name, blobs in net.params.items()
        for what, blob in zip(OF_BATCH if kinds.get(name) == "bn" else ("weight", "bias"), blobs)
    }


@contextmanager
def written(message: Any) -> Iterator[str]:
    """Yield the path of a file with this text: Caffe reads files only."""
    descriptor, path = tempfile.mkstemp(suffix=".prototxt")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(str(message))
        yield path
    finally:
        Path(path).unlink()


def _net(layers: Sequence[Layer], batch_size: int, training: bool) -> Any:
    net = caffe_pb2.NetParameter()
    for layer in layers:
        name, inputs = layer["name"], list(layer["inputs"])
        if layer["kind"] == "input":
            _add(net, name, "Input", []).input_param.shape.add().dim[:] = [batch_size, *layer["shape_out"]]
        elif layer["kind"] == "bn":
            own = _add(net, name, "BatchNorm", inputs).batch_norm_param
            # By a fraction of 0 Caffe gives the statistics of the batch alone. Its own running ones are those of a sum, not PyTorch's.
            own.use_global_stats, own.moving_average_fraction, own.eps = not training, 0.0, layer["epsilon"]
            net.layer[-1].top[:] = [name + "/normalised"]
            scale = _add(net, name + SCALE, "Scale", [name + "/normalised"])
            scale.scale_param.bias_term = True
            scale.top[:] = [name]
            _decay(scale, 0, 0)
        else:
            kind, fill = _KINDS[layer["kind"]]
            fill(layer, _add(net, name, kind, inputs))
    return net


def _add(net: Any, name: str, kind: str, inputs: Sequence[str]) -> Any:
    layer = net.layer.add(name=name, type=kind)
    layer.bottom[:] = inputs
    layer.top[:] = [name]
    return layer


def _decay(own: Any, *factors: float) -> None:
    """Set the factors of weight decay for each blob: weights have it, biases and batch normalisation do not."""
    for factor in factors:
        own.param.add(decay_mult=factor)


def _conv(layer: Layer, own: Any) -> None:
    _decay(own, 1, 0)
    to = own.convolution_param
    to.num_output, to.group, to.bias_term = layer["shape_out"][0], layer["groups"], layer["bias"]
    to.kernel_size[:], to.stride[:], to.pad[:] = layer["kernel"], layer["stride"], layer["padding"]
    if not layer["bias"]:
        del own.param[1]


def _linear(layer: Layer, own: Any) -> None:
    _decay(own, 1, 0)
    own.inner_product_param.num_output = layer["shape_out"][0]


def _pool(layer: Layer, own: Any) -> None:
    to = own.pooling_param
    to.pool = to.MAX if layer["mode"] == "max" else to.AVE
    to.round_mode = to.CEIL if layer.get("ceil") else to.FLOOR
    (to.kernel_h, to.kernel_w), (to.stride_h, to.stride_w), (to.pad_h, to.pad_w) = layer["kernel"], layer["stride"], layer["padding"]


def _global_pool(_: Layer, own: Any) -> None:
    own.pooling_param.pool = own.pooling_param.AVE
    own.pooling_param.global_pooling = True


def _lrn(layer: Layer, own: Any) -> None:
    to = own.lrn_param
    to.local_size, to.alpha, to.beta, to.k = layer["size"], layer["alpha"], layer["beta"], layer["k"]


def _dropout(layer: Layer, own: Any) -> None:
    own.dropout_param.dropout_ratio = layer["ratio"]


def _nothing_more(_: Layer, __: Any) -> None:
    pass


_KINDS: dict[str, tuple[str, Callable[[Layer, Any], None]]] = {
    "conv": ("Convolution", _conv),
    "linear": ("InnerProduct", _linear),
    "pool": ("Pooling", _pool),
    "global_pool": ("Pooling", _global_pool),
    "lrn": ("LRN", _lrn),
    "dropout": ("Dropout", _dropout),
    "relu": ("ReLU", _nothing_more),
    "flatten": ("Flatten", _nothing_more),
    "add": ("Eltwise", _nothing_more),
    "concat": ("Concat", _nothing_more),
}
