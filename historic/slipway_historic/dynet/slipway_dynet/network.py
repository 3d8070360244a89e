"""A network from a layer list, as a graph of DyNet, which is built anew in each step. Activations are (height, width, channels).

DyNet has convolutions without groups and a pooling by maxima; what else networks for images have is made of sums and selections.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import dynet
import numpy as np
from slipway_program.parameters import Layer

Tensors = Mapping[str, Any]
LOWEST = float(np.finfo(np.float32).min)
CHANNELS, FEATURES = 2, 3
"""Axes: of activations, and of the weights of a convolution."""


def to_dynet(array: np.ndarray) -> np.ndarray:
    """Convert from the canonical layout: convolutions have (height, width, in, out), the others are as they are."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array


def to_canonical(array: np.ndarray) -> np.ndarray:
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array


def forward(layers: Sequence[Layer], tensors: Tensors, images: np.ndarray, training: bool) -> tuple[Any, dict[str, dynet.Expression]]:
    """Return an expression of `batch` vectors of classes for float32 images [batch, channels, height, width]; and in training, by the names
    of running statistics, what those of the batch are. `tensors`: parameters; and running statistics, as arrays.
    """
    values = {layers[0]["name"]: dynet.inputTensor(images.transpose(2, 3, 1, 0), batched=True)}
    moments: dict[str, dynet.Expression] = {}
    for layer in layers[1:]:
        name, inputs = layer["name"], [values[read] for read in layer["inputs"]]
        own = [tensors[key] for what in ("weight", "bias") if (key := f"{name}.{what}") in tensors]
        if layer["kind"] == "bn":
            running = [f"{name}.{what}" for what in ("running_mean", "running_var")]
            of_batch = _moments(inputs[0]) if training else [dynet.inputTensor(tensors[key]) for key in running]
            moments.update(zip(running, of_batch))
            values[name] = _bn(layer, own, of_batch, inputs[0])
        elif layer["kind"] == "dropout":
            values[name] = dynet.dropout(inputs[0], layer["ratio"]) if training else inputs[0]
        else:
            values[name] = _KINDS[layer["kind"]](layer, own, *inputs)
    return values[layers[-1]["name"]], moments


def _moments(x: Any) -> list[Any]:
    mean = dynet.mean_dim(x, [0, 1], True)
    return [mean, dynet.mean_dim(dynet.square(x - _of_channels(mean)), [0, 1], True)]


def _bn(layer: Layer, own: Sequence[Any], moments: Sequence[Any], x: Any) -> Any:
    scale = dynet.cdiv(own[0], dynet.sqrt(moments[1] + layer["epsilon"]))
    return dynet.cmult(x - _of_channels(moments[0]), _of_channels(scale)) + _of_channels(own[1])


def _of_channels(vector: Any) -> Any:
    return dynet.reshape(vector, (1, 1, vector.dim()[0][0]))


def _conv(layer: Layer, own: Sequence[Any], x: Any) -> Any:
    parts = zip(_parts(_padded(layer, x, 0.0), CHANNELS, layer["groups"]), _parts(own[0], FEATURES, layer["groups"]))
    x = _joined([dynet.conv2d(part, weight, layer["stride"], is_valid=True) for part, weight in parts], CHANNELS)
    return x + _of_channels(own[1]) if layer["bias"] else x


def _parts(x: Any, axis: int, count: int) -> list[Any]:
    if count == 1:
        return [x]
    size = x.dim()[0][axis] // count
    return [dynet.pick_range(x, first, first + size, axis) for first in range(0, count * size, size)]


def _joined(parts: Sequence[Any], axis: int) -> Any:
    return dynet.concatenate(list(parts), axis) if len(parts) > 1 else parts[0]


def _pool(layer: Layer, _: Sequence[Any], x: Any) -> Any:
    if layer["mode"] == "max":
        return dynet.maxpooling2d(_padded(layer, x, LOWEST), layer["kernel"], layer["stride"], is_valid=True)
    x, steps = _padded(layer, x, 0.0), [*layer["stride"], 1]
    reach = [(count - 1) * stride + 1 for count, stride in zip(layer["shape_out"][1:], layer["stride"])]
    places = list(np.ndindex(*layer["kernel"]))
    parts = [dynet.strided_select(x, steps, [*place, 0], [place[0] + reach[0], place[1] + reach[1], x.dim()[0][2]]) for place in places]
    return dynet.esum(parts) / len(parts)


def _padded(layer: Layer, x: Any, value: float) -> Any:
    """Pad with more at the end where the last window reaches over it. DyNet's own padding is another one."""
    for axis in (0, 1):
        padding, kernel, stride = (layer[key][axis] for key in ("padding", "kernel", "stride"))
        reach = (layer["shape_out"][1 + axis] - 1) * stride + kernel
        x = _widened(x, axis, padding, max(padding, reach - x.dim()[0][axis] - padding), value)
    return x


def _widened(x: Any, axis: int, before: int, behind: int, value: float) -> Any:
    shape = x.dim()[0]
    start, end = ([dynet.constant((*shape[:axis], size, *shape[axis + 1 :]), value)] if size else [] for size in (before, behind))
    return _joined([*start, x, *end], axis)


def _lrn(layer: Layer, _: Sequence[Any], x: Any) -> Any:
    size, channels = layer["size"], layer["shape_out"][0]
    squares = _widened(dynet.square(x), CHANNELS, size // 2, size // 2, 0.0)
    summed = dynet.esum([dynet.pick_range(squares, first, first + channels, CHANNELS) for first in range(size)])
    return dynet.cdiv(x, dynet.pow(summed * (layer["alpha"] / size) + layer["k"], dynet.scalarInput(layer["beta"])))


def _linear(_: Layer, own: Sequence[Any], x: Any) -> Any:
    weight, bias = own
    return dynet.affine_transform([bias, weight, x])


def _flatten(layer: Layer, _: Sequence[Any], x: Any) -> Any:
    """Flatten; DyNet counts the first dimension fastest: (width, height, channels) is channels, rows, columns in memory."""
    return dynet.reshape(dynet.transpose(x, [1, 0, 2]), tuple(layer["shape_out"]))


_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "lrn": _lrn,
    "flatten": _flatten,
    "global_pool": lambda _, __, x: _of_channels(dynet.mean_dim(x, [0, 1], False)),
    "relu": lambda _, __, x: dynet.rectify(x),
    "concat": lambda _, __, *inputs: _joined(inputs, CHANNELS),
    "add": lambda _, __, first, second: first + second,
}
