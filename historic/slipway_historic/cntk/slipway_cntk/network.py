"""A network from a layer list, as a function of CNTK. Activations are in CHW; dense weights are (in, out)."""

from typing import Any, Callable, Dict, Mapping, Sequence

import cntk as C
import numpy as np
from slipway_program.parameters import RUNNING, Layer

Tensors = Mapping[str, "C.Variable"]
LOWEST = float(np.finfo(np.float32).min)
COUNTED = 1e6
"""Samples that a batch normalisation has seen before, so that the first batch counts as any other."""


class Network:
    """The layers in their order. `tensors`: parameters and running statistics by name, in CNTK's layouts; `images` goes in, and for each
    dropout layer one of `masks`, which it multiplies by, because no seed begins the numbers of CNTK's own anew; `outputs` comes out."""

    def __init__(self, layers: Sequence[Layer], arrays: Mapping[str, np.ndarray], batch_size: int) -> None:
        own_kind = {True: C.constant, False: lambda start: C.parameter(init=start)}
        self.tensors = {name: own_kind[name.endswith(RUNNING)](to_cntk(array)) for name, array in arrays.items()}
        self.images = C.input_variable(tuple(layers[0]["shape_out"]))
        self.masks = {layer["name"]: C.input_variable(tuple(layer["shape_out"])) for layer in layers if layer["kind"] == "dropout"}
        values = {layers[0]["name"]: self.images}
        for layer in layers[1:]:
            name, inputs = layer["name"], [values[read] for read in layer["inputs"]]
            own = {what: self.tensors[key] for what, key in ((what, "%s.%s" % (name, what)) for what in _NAMES) if key in self.tensors}
            if name in self.masks:
                values[name] = inputs[0] * self.masks[name]
            elif layer["kind"] == "bn":
                values[name] = _bn(layer, own, batch_size, inputs[0])
            else:
                values[name] = _KINDS[layer["kind"]](layer, own, *inputs)
        self.outputs = values[layers[-1]["name"]]


def to_cntk(array: np.ndarray) -> np.ndarray:
    """Convert from the canonical layout, or back: CNTK has (in, out) where the other has (out, in), and OIHW as it is."""
    return np.ascontiguousarray(array.T if array.ndim == 2 else array)


def _conv(layer: Layer, own: Tensors, x: Any) -> Any:
    strides = tuple(layer["stride"])
    x = C.convolution(own["weight"], _padded(layer, x, 0.0), strides=strides, auto_padding=[False], groups=layer["groups"])
    return x + C.reshape(own["bias"], (layer["shape_out"][0], 1, 1)) if layer["bias"] else x


def _pool(layer: Layer, _: Tensors, x: Any) -> Any:
    largest = layer["mode"] == "max"
    kind, around = (C.MAX_POOLING, LOWEST) if largest else (C.AVG_POOLING, 0.0)
    return C.pooling(_padded(layer, x, around), kind, tuple(layer["kernel"]), tuple(layer["stride"]), auto_padding=[False])


def _padded(layer: Layer, x: Any, value: float) -> Any:
    """Pad with more at the end where the last window reaches over it."""
    around = [(0, 0)]
    for size, padding, count, stride, kernel in zip(
        x.shape[1:], layer["padding"], layer["shape_out"][1:], layer["stride"], layer["kernel"]
    ):
        around.append((padding, max(padding, (count - 1) * stride + kernel - size - padding)))
    return C.pad(x, around, mode=C.ops.CONSTANT_PAD, constant_value=value) if any(map(any, around)) else x


def _linear(layer: Layer, own: Tensors, x: Any) -> Any:
    x = C.times(x, own["weight"])
    return x + own["bias"] if layer["bias"] else x


def _bn(layer: Layer, own: Tensors, batch_size: int, x: Any) -> Any:
    """Normalise in training by this rank's batch, which moves the running statistics as PyTorch's does: so fast that one batch counts
    `momentum`.
    """
    fading = -batch_size / np.log(1 - layer["momentum"])
    before = C.constant(COUNTED)
    return C.batch_normalization(x, *own.values(), True, fading, epsilon=layer["epsilon"], use_cudnn_engine=False, running_count=before)


_NAMES = ("weight", "bias", "running_mean", "running_var")
_KINDS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "flatten": lambda layer, _, x: C.reshape(x, tuple(layer["shape_out"])),
    "relu": lambda _, __, x: C.relu(x),
    "add": lambda _, __, first, second: first + second,
    "concat": lambda _, __, *inputs: C.splice(*inputs, axis=0),
    "global_pool": lambda _, __, x: C.reduce_mean(x, axis=(1, 2)),
    "lrn": lambda layer, _, x: C.local_response_normalization(x, layer["size"] // 2, layer["k"], layer["alpha"], layer["beta"]),
}
