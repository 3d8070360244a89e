"""A network from a layer list, as layers of Lasagne. Its convolutions flip the kernel, and dense weights are (in, out)."""

from typing import Any, Callable, Dict, Mapping, Sequence

import numpy as np
from lasagne import layers as L
from slipway_program.theano_ops import max_pool, relu

Layer = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


class Network:
    """`tensors`: parameters by their canonical names, in Lasagne's layouts, in memory that Theano's functions share."""

    def __init__(self, layers: Sequence[Layer], arrays: Arrays) -> None:
        found = {layers[0]["name"]: L.InputLayer((None, *layers[0]["shape_out"]))}
        self.tensors: Dict[str, Any] = {}
        for layer in layers[1:]:
            name = layer["name"]
            own = {what: to_lasagne(arrays[key]) for what, key in (("W", name + ".weight"), ("b", name + ".bias")) if key in arrays}
            made = _KINDS[layer["kind"]](layer, own, *(found[read] for read in layer["inputs"]))
            found[name] = made
            names = (("weight", "W"), ("bias", "b"))
            self.tensors.update({"%s.%s" % (name, what): getattr(made, attribute) for what, attribute in names if attribute in own})
        self._last = found[layers[-1]["name"]]

    def graph(self, images: Any) -> Any:
        """Images [batch, channels, height, width], float32 -> [batch, classes]."""
        return L.get_output(self._last, images)


def to_lasagne(array: np.ndarray) -> np.ndarray:
    """From the canonical layout, or back."""
    if array.ndim == 4:
        array = array[:, :, ::-1, ::-1]
    return np.ascontiguousarray(array.T if array.ndim == 2 else array)


class MaxPool(L.Layer):
    """Lasagne's own is Theano's."""

    def __init__(self, below: Any, layer: Layer) -> None:
        L.Layer.__init__(self, below)
        self._layer = layer

    def get_output_shape_for(self, input_shape: Any) -> Any:
        return (input_shape[0], *self._layer["shape_out"])

    def get_output_for(self, x: Any, **_: Any) -> Any:
        return max_pool(self._layer, x)


def _conv(layer: Layer, own: Arrays, below: Any) -> Any:
    stride, padding = tuple(layer["stride"]), tuple(layer["padding"])
    return L.Conv2DLayer(below, layer["shape_out"][0], tuple(layer["kernel"]), stride, padding, nonlinearity=None, **_both(own))


def _pool(layer: Layer, _: Arrays, below: Any) -> Any:
    if layer["mode"] == "max":
        return MaxPool(below, layer)
    windows, strides, padding = (tuple(layer[key]) for key in ("kernel", "stride", "padding"))
    return L.Pool2DLayer(below, windows, strides, padding, mode="average_inc_pad")


def _both(own: Arrays) -> Dict[str, Any]:
    """A layer without a bias is told so."""
    return dict({"b": None}, **own)


_KINDS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": lambda layer, own, below: L.DenseLayer(below, layer["shape_out"][0], nonlinearity=None, **_both(own)),
    "flatten": lambda _, __, below: L.FlattenLayer(below),
    "relu": lambda _, __, below: L.NonlinearityLayer(below, relu),
}
