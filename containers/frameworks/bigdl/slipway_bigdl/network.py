"""A network from a layer list, as BigDL's layers one after the other."""

from typing import Any, Mapping, Sequence

import numpy as np
from bigdl.dllib.nn.layer import (
    Dropout,
    Linear,
    LogSoftMax,
    ReLU,
    Reshape,
    Sequential,
    SpatialAveragePooling,
    SpatialConvolution,
    SpatialMaxPooling,
)
from bigdl.dllib.optim.optimizer import L2Regularizer

Layer = Mapping[str, Any]


def network(layers: Sequence[Layer], arrays: Mapping[str, np.ndarray], weight_decay: float) -> Any:
    """With these weights. `weight_decay` is of weights alone, not of biases. Raises ValueError for what is no chain of these kinds."""
    shapes = {layer["name"]: layer["shape_out"] for layer in layers}
    net = Sequential()
    for place, layer in enumerate(layers[1:]):
        if layer["kind"] not in _KINDS or layer["inputs"] != [layers[place]["name"]]:
            raise ValueError("layer %r (%s) is no link of a chain of %s" % (layer["name"], layer["kind"], ", ".join(_KINDS)))
        decay = L2Regularizer(weight_decay) if weight_decay and layer["kind"] in ("conv", "linear") else None
        net.add(_KINDS[layer["kind"]](layer, shapes[layer["inputs"][0]], decay))
    net.add(LogSoftMax())
    net.set_weights([to_bigdl(array) for array in arrays.values()])
    return net


def to_bigdl(array: np.ndarray) -> np.ndarray:
    """From the canonical layout: a convolution has the groups as an axis of their own."""
    return array[np.newaxis] if array.ndim == 4 else array


def _conv(layer: Layer, before: Sequence[int], decay: Any) -> Any:
    (height, width), (down, right), (rows, columns) = layer["kernel"], layer["stride"], layer["padding"]
    sizes = (before[0], layer["shape_out"][0], width, height, right, down, columns, rows)
    return SpatialConvolution(*sizes, n_group=layer["groups"], wRegularizer=decay, with_bias=layer["bias"])


def _pool(layer: Layer, _: Sequence[int], __: Any) -> Any:
    (height, width), (down, right), (rows, columns) = layer["kernel"], layer["stride"], layer["padding"]
    kind = SpatialMaxPooling if layer["mode"] == "max" else SpatialAveragePooling
    return kind(width, height, right, down, columns, rows)


_KINDS = {
    "conv": _conv,
    "pool": _pool,
    "linear": lambda layer, before, decay: Linear(before[0], layer["shape_out"][0], wRegularizer=decay),
    "relu": lambda _, __, ___: ReLU(),
    "dropout": lambda layer, _, __: Dropout(layer["ratio"]),
    "flatten": lambda layer, _, __: Reshape([layer["shape_out"][0]]),
}
