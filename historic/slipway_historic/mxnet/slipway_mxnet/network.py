"""A network from a layer list, as a HybridBlock of Gluon. Parameters keep their canonical names and shapes; activations are in NCHW."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import mxnet as mx
import numpy as np
from slipway_program.parameters import RUNNING, Layer

Tensors = Mapping[str, Any]


class Network(mx.gluon.HybridBlock):
    """The layers in their order. `tensors`: parameters and running statistics by name, all zero at first."""

    def __init__(self, layers: Sequence[Layer], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self._layers = layers
        self.tensors = {}
        for name, array in arrays.items():
            use = {"grad_req": "null", "differentiable": False} if name.endswith(RUNNING) else {}
            self.tensors[name] = self.params.get(name, shape=array.shape, init="zeros", **use)
            setattr(self, name, self.tensors[name])  # Gluon gives those to hybrid_forward

    def hybrid_forward(self, F: Any, x: Any, **tensors: Any) -> Any:  # noqa: N803 - Gluon's name for the operators
        """Return [batch, classes] of float32 images [batch, channels, height, width]."""
        values = {self._layers[0]["name"]: x}
        for layer in self._layers[1:]:
            own = {what: tensors[name] for what in _NAMES if (name := f"{layer['name']}.{what}") in tensors}
            values[layer["name"]] = _KINDS[layer["kind"]](F, layer, own, *(values[read] for read in layer["inputs"]))
        return values[self._layers[-1]["name"]]


def _conv(operators: Any, layer: Layer, own: Tensors, x: Any) -> Any:
    return operators.Convolution(
        x,
        *own.values(),
        kernel=layer["kernel"],
        stride=layer["stride"],
        pad=layer["padding"],
        num_filter=layer["shape_out"][0],
        num_group=layer["groups"],
        no_bias="bias" not in own,
    )


def _pool(operators: Any, layer: Layer, _: Tensors, x: Any) -> Any:
    """Pool; `full` is MXNet's word for a number of windows that is rounded up."""
    rounded = "full" if layer.get("ceil") else "valid"
    windows = {"kernel": layer["kernel"], "stride": layer["stride"], "pad": layer["padding"]}
    return operators.Pooling(x, **windows, pool_type=layer["mode"], pooling_convention=rounded)


def _linear(operators: Any, layer: Layer, own: Tensors, x: Any) -> Any:
    return operators.FullyConnected(x, *own.values(), num_hidden=layer["shape_out"][0], no_bias="bias" not in own)


def _bn(operators: Any, layer: Layer, own: Tensors, x: Any) -> Any:
    """Normalise in training by the statistics of this rank's batch, which take the place of the running ones, by a momentum of 0: MXNet's
    own running variance would be that of the batch, and PyTorch's is that of a sample.
    """
    return operators.BatchNorm(x, *own.values(), eps=layer["epsilon"], momentum=0.0, fix_gamma=False)


def _lrn(operators: Any, layer: Layer, _: Tensors, x: Any) -> Any:
    """Divide by the mean of the squares of neighbours in the row of channels, zeros around them. MXNet's own operator has a wrong gradient
    on CPUs where a pooling follows and the channels divide by 8: by MKL-DNN's blocks of channels.
    """
    channels, height, width = layer["shape_out"]
    squares = operators.reshape(operators.square(x), shape=(-1, 1, channels, height * width))
    around = {"kernel": (layer["size"], 1), "pad": (layer["size"] // 2, 0), "stride": (1, 1)}
    mean = operators.Pooling(squares, **around, pool_type="avg")
    return x / (layer["k"] + layer["alpha"] * operators.reshape(mean, shape=(-1, channels, height, width))) ** layer["beta"]


_NAMES = ("weight", "bias", "running_mean", "running_var")
_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "flatten": lambda operators, _, __, x: operators.Flatten(x),
    "bn": _bn,
    "global_pool": lambda operators, _, __, x: operators.mean(x, axis=(2, 3), keepdims=True),
    "lrn": _lrn,
    "concat": lambda operators, _, __, *inputs: operators.concat(*inputs, dim=1),
    "dropout": lambda operators, layer, _, x: operators.Dropout(x, p=layer["ratio"]),
    "relu": lambda operators, _, __, x: operators.relu(x),
    "add": lambda _, __, ___, first, second: first + second,
}
