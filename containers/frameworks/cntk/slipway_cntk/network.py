"""A network from a layer list, as a function of CNTK. Activations are in CHW; dense weights are (in, out)."""

from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import cntk as C
import numpy as np

Layer = Mapping[str, Any]
Tensors = Mapping[str, Any]
LOWEST = float(np.finfo(np.float32).min)


class Network:
    """The layers in their order. `tensors`: parameters by name, in CNTK's layouts; `images` goes in, `outputs` comes out."""

    def __init__(self, layers: Sequence[Layer], arrays: Mapping[str, np.ndarray]) -> None:
        self.tensors = {name: C.parameter(init=to_cntk(array)) for name, array in arrays.items()}
        self.images = C.input_variable(tuple(layers[0]["shape_out"]))
        values = {layers[0]["name"]: self.images}
        for layer in layers[1:]:
            name = layer["name"]
            own = {what: self.tensors[key] for what, key in ((what, "%s.%s" % (name, what)) for what in _NAMES) if key in self.tensors}
            values[name] = _KINDS[layer["kind"]](layer, own, *(values[read] for read in layer["inputs"]))
        self.outputs = values[layers[-1]["name"]]


def to_cntk(array: np.ndarray) -> np.ndarray:
    """From the canonical layout, or back: CNTK has (in, out) where the other has (out, in), and OIHW as it is."""
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
    rows, columns = layer["padding"]
    around: Sequence[Tuple[int, int]] = [(0, 0), (rows, rows), (columns, columns)]
    return C.pad(x, around, mode=C.ops.CONSTANT_PAD, constant_value=value) if rows or columns else x


def _linear(layer: Layer, own: Tensors, x: Any) -> Any:
    x = C.times(x, own["weight"])
    return x + own["bias"] if layer["bias"] else x


_NAMES = ("weight", "bias")
_KINDS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "flatten": lambda layer, _, x: C.reshape(x, tuple(layer["shape_out"])),
    "relu": lambda _, __, x: C.relu(x),
    "lrn": lambda layer, _, x: C.local_response_normalization(
        x, layer["size"] // 2, layer["k"], layer["alpha"] / layer["size"], layer["beta"]
    ),
}
