"""Build the layer list of a network, with the shapes worked out, from which every framework builds it.

A layer is a plain dictionary, because it travels as JSON to programs of any framework and any Python. Keys of every layer:

    name, kind, inputs (names of layers), shape_out ([channels, height, width] or [features], without the batch),
    parameters (trainable), macs (multiply-adds of one forward pass of one sample)

and by kind: `conv` kernel, stride, padding (pairs), groups, bias, initial_limit; `linear` bias, initial_limit; `pool` mode (max, or avg,
for which the zeros of the padding count), kernel, stride, padding, and of some max pools ceil: true (the number of windows is rounded up,
and the last one reaches over the end; else down); `bn` epsilon, momentum (PyTorch's: the weight of the new value); `lrn` size (odd), alpha
(divided by size), beta, k; `dropout` ratio (of what is dropped); `add` two inputs; `concat` two inputs or more, one after the other along
the channels; `input`, `relu`, `global_pool`, `flatten` (channels first) nothing more.

Every framework starts from the same weights: those of a layer are uniform in +-initial_limit, drawn as
`(2 * RandomState(crc32(b"<seed>:<layer name>")).random_sample(shape) - 1) * initial_limit` with numpy, in the shape OIHW or (out, in);
biases are 0, batch normalisation is the identity. What networks that read tokens have besides is in tokens.py.
"""

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

Layer = Mapping[str, Any]


class ShapeTooSmall(ValueError):
    """An output of this layer would have no pixel left."""


class LayerList:
    """Layers in order; every method adds one after `after` (default: the last one) and returns its name."""

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        self.layers: list[Layer] = []
        self._shapes: dict[str, list[int]] = {}
        self._last = ""
        self._add("input", "input", [], [channels, *size])

    def shape(self, name: str = "") -> list[int]:
        """Return the output shape of the layer `name` (default: the last one)."""
        return self._shapes[name or self._last]

    def conv(  # noqa: PLR0913 - a convolution has that many properties
        self, name: str, channels: int, kernel: int, *, stride: int = 1, padding: int = 0, groups: int = 1, bias: bool = True
    ) -> str:
        """Add a convolution (cross-correlation) with zero padding, after the last layer."""
        channels_in = self.shape()[0]
        shape = [channels, *self._windows(name, kernel, stride, padding)]
        weights = channels * channels_in // groups * kernel * kernel
        return self._add(
            name,
            "conv",
            [self._last],
            shape,
            parameters=weights + (channels if bias else 0),
            macs=weights * shape[1] * shape[2],
            kernel=[kernel, kernel],
            stride=[stride, stride],
            padding=[padding, padding],
            groups=groups,
            bias=bias,
        )

    def pool(self, name: str, kernel: int, stride: int, padding: int = 0, mode: str = "max") -> str:
        """Add max or average pooling; where the windows do not divide the image, what is left over is dropped."""
        shape = [self.shape()[0], *self._windows(name, kernel, stride, padding)]
        extra = {"mode": mode, "kernel": [kernel, kernel], "stride": [stride, stride], "padding": [padding, padding]}
        return self._add(name, "pool", [self._last], shape, **extra)

    def ceil_pool(self, name: str, kernel: int, stride: int) -> str:
        """Add max pooling without padding that drops nothing: where the windows do not divide the image, one more reaches over its end."""
        if kernel < stride:
            raise ValueError(f"{name}: a window of {kernel} every {stride} could begin behind the end")
        shape = [self.shape()[0], *self._windows(name, kernel, stride, 0, up=True)]
        extra = {"mode": "max", "kernel": [kernel, kernel], "stride": [stride, stride], "padding": [0, 0], "ceil": True}
        return self._add(name, "pool", [self._last], shape, **extra)

    def linear(self, name: str, features: int) -> str:
        """Add a fully connected layer with bias, over features that are flat."""
        (features_in,) = self.shape()
        weights = features * features_in
        return self._add(name, "linear", [self._last], [features], parameters=weights + features, macs=weights, bias=True)

    def bn(self, name: str, epsilon: float = 1e-5, momentum: float = 0.1) -> str:
        """Add batch normalisation with scale and shift; running statistics are not parameters."""
        shape = self.shape()
        return self._add(name, "bn", [self._last], shape, parameters=2 * shape[0], epsilon=epsilon, momentum=momentum)

    def lrn(self, name: str, size: int, alpha: float, beta: float, k: float = 1.0) -> str:
        """Add local response normalisation across channels; alpha is divided by the size, as Caffe and PyTorch do."""
        return self._add(name, "lrn", [self._last], self.shape(), size=size, alpha=alpha, beta=beta, k=k)

    def relu(self, name: str) -> str:
        return self._add(name, "relu", [self._last], self.shape())

    def dropout(self, name: str, ratio: float = 0.5) -> str:
        """Add dropout, in training only; the rest is scaled by 1 / (1 - ratio)."""
        return self._add(name, "dropout", [self._last], self.shape(), ratio=ratio)

    def global_pool(self, name: str) -> str:
        return self._add(name, "global_pool", [self._last], [self.shape()[0], 1, 1])

    def flatten(self, name: str) -> str:
        """Flatten channels, then rows, then columns, whatever the layout in memory."""
        return self._add(name, "flatten", [self._last], [prod(self.shape())])

    def add(self, name: str, first: str, second: str) -> str:
        if self.shape(first) != self.shape(second):
            raise ValueError(f"{name}: {first} is {self.shape(first)} and {second} is {self.shape(second)}: they cannot be added")
        return self._add(name, "add", [first, second], self.shape(first))

    def concat(self, name: str, *inputs: str) -> str:
        shapes = [self.shape(read) for read in inputs]
        if len({tuple(shape[1:]) for shape in shapes}) != 1:
            raise ValueError(f"{name}: the images of {', '.join(inputs)} differ in size: {shapes}")
        return self._add(name, "concat", inputs, [sum(shape[0] for shape in shapes), *shapes[0][1:]])

    def continue_from(self, name: str) -> None:
        """Begin a branch: the next layer follows `name`, not the last one."""
        self._last = name

    def _windows(self, name: str, kernel: int, stride: int, padding: int, *, up: bool = False) -> list[int]:
        shape = [(extent + 2 * padding - kernel + up * (stride - 1)) // stride + 1 for extent in self.shape()[1:]]
        if min(shape) < 1:
            raise ShapeTooSmall(f"layer {name!r}: a {kernel}x{kernel} window does not fit into {'x'.join(map(str, self.shape()[1:]))}")
        return shape

    def _add(self, name: str, kind: str, inputs: Sequence[str], shape: list[int], **extra: Any) -> str:
        if name in self._shapes:
            raise ValueError(f"two layers are called {name!r}")
        counts = {"parameters": extra.pop("parameters", 0), "macs": extra.pop("macs", 0)}
        self.layers.append({"name": name, "kind": kind, "inputs": list(inputs), "shape_out": list(shape), **counts, **extra})
        self._shapes[name] = list(shape)
        self._last = name
        return name


def first_macs(layers: Sequence[Layer]) -> int:
    """Return the multiply-adds of the layers that have no parameters before them: no framework computes the gradient of their input."""
    after_parameters: set[str] = set()
    total = 0
    for layer in layers:
        after = any(name in after_parameters for name in layer["inputs"])
        total += 0 if after else layer["macs"]
        if after or layer["parameters"]:
            after_parameters.add(layer["name"])
    return total


def without_dropout(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the same network, of which nothing is dropped: who read a dropout layer reads what that read."""
    kept: list[Layer] = []
    instead: dict[str, str] = {}
    for layer in layers:
        inputs = [instead.get(name, name) for name in layer["inputs"]]
        if layer["kind"] == "dropout":
            instead[layer["name"]] = inputs[0]
        else:
            kept.append({**layer, "inputs": inputs})
    return tuple(kept)


def with_initial_limits(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers, `conv` and `linear` with the bound of their starting weights: the variance of activations stays what it is (He et
    al. 2015 where a ReLU follows, LeCun et al. 1998 where none does)."""
    shapes = {layer["name"]: layer["shape_out"] for layer in layers}
    rectified = {name for layer in layers if layer["kind"] == "relu" for name in layer["inputs"]}
    rectified |= {layer["inputs"][0] for layer in layers if layer["kind"] == "bn" and layer["name"] in rectified}

    def limited(layer: Layer) -> Layer:
        if layer["kind"] not in ("conv", "linear"):
            return layer
        fan_in = shapes[layer["inputs"][0]][0] // layer.get("groups", 1) * prod(layer.get("kernel", [1]))
        return {**layer, "initial_limit": sqrt((6 if layer["name"] in rectified else 3) / fan_in)}

    return tuple(limited(layer) for layer in layers)
