"""A network from a layer list, as layers of Lasagne. Its convolutions flip the kernel, and dense weights are (in, out)."""

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np
from lasagne import layers as L
from slipway_historic_program.theano_rank import RandomState, max_pool, relu
from slipway_program.parameters import RUNNING, Layer
from theano import tensor as T

Arrays = Mapping[str, np.ndarray]


class Network:
    """A network of Lasagne's layers. `tensors`: parameters by their canonical names, in Lasagne's layouts, in memory that Theano's
    functions share."""

    def __init__(self, layers: Sequence[Layer], arrays: Arrays) -> None:
        found = {layers[0]["name"]: L.InputLayer((None, *layers[0]["shape_out"]))}
        self.random_state = RandomState()
        self.tensors: Dict[str, "T.TensorVariable"] = {}
        self._batch_norms: Dict[str, BatchNorm] = {}
        for layer in layers[1:]:
            name = layer["name"]
            own = {what: to_lasagne(arrays[key]) for what, key in ((what, name + key) for what, key in _NAMES) if key in arrays}
            below = [found[read] for read in layer["inputs"]]
            if layer["kind"] == "dropout":
                found[name] = Dropout(below[0], layer["ratio"], self.random_state)
                continue
            found[name] = made = _KINDS[layer["kind"]](layer, own, *below)
            if isinstance(made, BatchNorm):
                self._batch_norms[name] = made
            self.tensors.update({name + key: getattr(made, what) for what, key in _NAMES if what in own})
        self._last = found[layers[-1]["name"]]

    def graph(self, images: Any, training: bool) -> Tuple[Any, Dict[str, "T.TensorVariable"]]:
        """Return ([batch, classes], what becomes of running statistics in training) for float32 images [batch, channels, height, width]."""
        outputs = L.get_output(self._last, images, deterministic=not training)
        running = {name + what: layer.found[what] for name, layer in self._batch_norms.items() for what in RUNNING if training}
        return outputs, running


def to_lasagne(array: np.ndarray) -> np.ndarray:
    """Convert from the canonical layout, or back."""
    if array.ndim == 4:
        array = array[:, :, ::-1, ::-1]
    return np.ascontiguousarray(array.T if array.ndim == 2 else array)


class MaxPool(L.Layer):
    """Max pooling of our own: Lasagne's is Theano's."""

    def __init__(self, below: Any, layer: Layer) -> None:
        L.Layer.__init__(self, below)
        self._layer = layer

    def get_output_shape_for(self, input_shape: Any) -> Any:
        return (input_shape[0], *self._layer["shape_out"])

    def get_output_for(self, x: Any, **_: Any) -> Any:
        return max_pool(self._layer, x)


class BatchNorm(L.Layer):
    """Batch normalisation, which Lasagne 0.1 lacks. In training by the statistics of this rank's batch; `found`: what becomes of the
    running ones then, whose variance is that of a sample (n - 1), as PyTorch's."""

    def __init__(self, below: Any, layer: Layer, own: Arrays) -> None:
        L.Layer.__init__(self, below)
        self._layer = layer
        self.W, self.b, self.mean, self.var = (
            self.add_param(own[what], own[what].shape, trainable=what in ("W", "b")) for what in ("W", "b", "mean", "var")
        )
        self.found: Dict[str, "T.TensorVariable"] = {}

    def get_output_for(self, x: Any, deterministic: bool = False, **_: Any) -> Any:
        mean, var = self.mean, self.var
        if not deterministic:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
            momentum, count = self._layer["momentum"], T.cast(x.shape[0] * x.shape[2] * x.shape[3], "float32")
            keep, take = np.float32(1 - momentum), np.float32(momentum)
            for what, running, new in zip(RUNNING, (self.mean, self.var), (mean, var * count / T.maximum(count - 1, 1))):
                self.found[what] = keep * running + take * new
        scale = self.W / T.sqrt(var + np.float32(self._layer["epsilon"]))
        return (x - _channels(mean)) * _channels(scale) + _channels(self.b)


class Dropout(L.Layer):
    """Dropout by our streams: Lasagne's own begins with a number that it draws itself."""

    def __init__(self, below: Any, ratio: float, random_state: RandomState) -> None:
        L.Layer.__init__(self, below)
        self._ratio, self._random_state = ratio, random_state

    def get_output_for(self, x: Any, deterministic: bool = False, **_: Any) -> Any:
        return x if deterministic else self._random_state.dropped(self._ratio, x)


class GroupedConv(L.Layer):
    """A grouped convolution, one for each group, since Theano 0.8 has no groups."""

    def __init__(self, below: Any, layer: Layer, own: Arrays) -> None:
        L.Layer.__init__(self, below)
        self._layer = layer
        self.W = self.add_param(own["W"], own["W"].shape)
        self.b = self.add_param(own["b"], own["b"].shape) if "b" in own else None

    def get_output_shape_for(self, input_shape: Any) -> Any:
        return (input_shape[0], *self._layer["shape_out"])

    def get_output_for(self, x: Any, **_: Any) -> Any:
        groups, (outputs, inputs) = self._layer["groups"], self.W.get_value(borrow=True).shape[:2]
        share = outputs // groups
        windows = {"border_mode": tuple(self._layer["padding"]), "subsample": tuple(self._layer["stride"])}
        found = [
            T.nnet.conv2d(x[:, inputs * group : inputs * (group + 1)], self.W[share * group : share * (group + 1)], **windows)
            for group in range(groups)
        ]
        joined = T.concatenate(found, axis=1)
        return joined if self.b is None else joined + _channels(self.b)


def _channels(values: Any) -> Any:
    return values.dimshuffle("x", 0, "x", "x")


def _conv(layer: Layer, own: Arrays, below: Any) -> Any:
    if layer["groups"] > 1:
        return GroupedConv(below, layer, own)
    stride, padding = tuple(layer["stride"]), tuple(layer["padding"])
    return L.Conv2DLayer(below, layer["shape_out"][0], tuple(layer["kernel"]), stride, padding, nonlinearity=None, **_both(own))


def _pool(layer: Layer, _: Arrays, below: Any) -> Any:
    if layer["mode"] == "max":
        return MaxPool(below, layer)
    windows, strides, padding = (tuple(layer[key]) for key in ("kernel", "stride", "padding"))
    return L.Pool2DLayer(below, windows, strides, padding, mode="average_inc_pad")


def _lrn(layer: Layer, _: Arrays, below: Any) -> Any:
    """Scale alpha: Lasagne's is for each channel, and not divided by their number."""
    return L.LocalResponseNormalization2DLayer(below, layer["alpha"] / layer["size"], layer["k"], layer["beta"], layer["size"])


def _both(own: Arrays) -> Dict[str, Optional[np.ndarray]]:
    return dict({"b": None}, **own)


_NAMES = (("W", ".weight"), ("b", ".bias"), ("mean", RUNNING[0]), ("var", RUNNING[1]))
_KINDS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": lambda layer, own, below: L.DenseLayer(below, layer["shape_out"][0], nonlinearity=None, **_both(own)),
    "flatten": lambda _, __, below: L.FlattenLayer(below),
    "bn": lambda layer, own, below: BatchNorm(below, layer, own),
    "global_pool": lambda _, __, below: L.GlobalPoolLayer(below),
    "lrn": _lrn,
    "concat": lambda _, __, *below: L.ConcatLayer(below),
    "add": lambda _, __, *below: L.ElemwiseSumLayer(below),
    "relu": lambda _, __, below: L.NonlinearityLayer(below, relu),
}
