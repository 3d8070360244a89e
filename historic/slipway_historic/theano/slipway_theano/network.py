"""A network from a layer list, as a graph of Theano. Parameters keep their canonical names and layouts; activations are in NCHW."""

from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import numpy as np
import theano
from slipway_historic_program.theano_rank import RandomState, max_pool, relu
from slipway_program.parameters import RUNNING, Layer
from theano import tensor as T
from theano.tensor.nnet import bn
from theano.tensor.signal.pool import pool_2d

Tensors = Mapping[str, "theano.Variable"]


class Network:
    """The layers in their order. `tensors`: parameters and running statistics by name, in memory that Theano's functions share."""

    def __init__(self, layers: Sequence[Layer], arrays: Mapping[str, np.ndarray]) -> None:
        self._layers = layers
        self.random_state = RandomState()
        self.tensors = {name: theano.shared(array, name) for name, array in arrays.items()}

    def graph(self, images: Any, training: bool) -> Tuple[Any, Dict[str, "theano.Variable"]]:
        """Return ([batch, classes], what becomes of running statistics in training) for float32 images [batch, channels, height, width]."""
        values = {self._layers[0]["name"]: images}
        running: Dict[str, "theano.Variable"] = {}
        for layer in self._layers[1:]:
            name = layer["name"]
            own = {what: self.tensors[key] for what, key in ((what, "%s.%s" % (name, what)) for what in _NAMES) if key in self.tensors}
            inputs = [values[read] for read in layer["inputs"]]
            if layer["kind"] == "bn" and training:
                values[name], *found = _bn_in_training(layer, own, inputs[0])
                running.update(zip((name + what for what in RUNNING), found))
            elif layer["kind"] == "dropout":
                values[name] = self.random_state.dropped(layer["ratio"], inputs[0]) if training else inputs[0]
            else:
                values[name] = _KINDS[layer["kind"]](layer, own, *inputs)
        return values[self._layers[-1]["name"]], running


def _conv(layer: Layer, own: Tensors, x: Any) -> Any:
    # A true convolution flips the kernel; that of networks does not.
    padding, strides = tuple(layer["padding"]), tuple(layer["stride"])
    x = T.nnet.conv2d(x, own["weight"], border_mode=padding, subsample=strides, filter_flip=False, num_groups=layer["groups"])
    return x + own["bias"].dimshuffle("x", 0, "x", "x") if layer["bias"] else x


def _pool(layer: Layer, _: Tensors, x: Any) -> Any:
    if layer["mode"] == "max":
        return max_pool(layer, x)
    windows, strides, padding = (tuple(layer[key]) for key in ("kernel", "stride", "padding"))
    return pool_2d(x, windows, ignore_border=True, stride=strides, pad=padding, mode="average_inc_pad")


def _linear(layer: Layer, own: Tensors, x: Any) -> Any:
    x = T.dot(x, own["weight"].T)
    return x + own["bias"] if layer["bias"] else x


def _bn(layer: Layer, own: Tensors, x: Any) -> Any:
    values = [own[name] for name in _NAMES]
    return bn.batch_normalization_test(x, *values, axes="spatial", epsilon=_epsilon(layer))


def _bn_in_training(layer: Layer, own: Tensors, x: Any) -> Tuple[Any, Any, Any]:
    """Normalise by the statistics of this rank's batch; the running variance is that of a sample (n - 1), as PyTorch's."""
    values = [own[name] for name in _NAMES]
    arguments = "spatial", _epsilon(layer), layer["momentum"]
    result, _, _, mean, variance = bn.batch_normalization_train(x, *values[:2], *arguments, *values[2:])
    return result, mean, variance


def _lrn(layer: Layer, _: Tensors, x: Any) -> Any:
    reach, channels = layer["size"] // 2, layer["shape_out"][0]
    around = T.alloc(np.float32(0), x.shape[0], channels + 2 * reach, x.shape[2], x.shape[3])
    squares = T.set_subtensor(around[:, reach : reach + channels], T.sqr(x))
    summed = sum((squares[:, first : first + channels] for first in range(1, layer["size"])), squares[:, :channels])
    return x / (np.float32(layer["k"]) + np.float32(layer["alpha"] / layer["size"]) * summed) ** np.float32(layer["beta"])


def _epsilon(layer: Layer) -> Any:
    """Return the next larger float32: Theano refuses less than 1e-5, which as a float32 is less than that."""
    return np.nextafter(np.float32(layer["epsilon"]), np.float32(1))


_NAMES = ("weight", "bias", "running_mean", "running_var")
_KINDS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "flatten": lambda _, __, x: x.flatten(2),
    "bn": _bn,
    "global_pool": lambda _, __, x: x.mean((2, 3), keepdims=True),
    "lrn": _lrn,
    "concat": lambda _, __, *inputs: T.concatenate(inputs, axis=1),
    "relu": lambda _, __, x: relu(x),
    "add": lambda _, __, first, second: first + second,
}
