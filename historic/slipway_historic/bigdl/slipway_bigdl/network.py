"""A network from a layer list, as a graph of BigDL's layers."""

from typing import Any, Callable, Dict, Mapping, Sequence

import numpy as np
from bigdl.dllib.nn import layer as nn
from bigdl.dllib.optim.optimizer import L2Regularizer
from slipway_program.parameters import RUNNING, Arrays, Layer

OWN = (".weight", ".bias")
RUNNING_OF_BIGDL = ("runningMean", "runningVar")


class Network:
    """The layers in their order; `graph` gives the logarithms of probabilities. `weight_decay` is of weights alone, not of biases, nor of
    batch normalisation."""

    def __init__(self, layers: Sequence[Layer], weight_decay: float) -> None:
        shapes = {layer["name"]: layer["shape_out"] for layer in layers}
        nodes = {layers[0]["name"]: nn.Input()}
        self._layers: Dict[str, "nn.Layer"] = {}
        for layer in layers[1:]:
            decay = L2Regularizer(weight_decay) if weight_decay and layer["kind"] in ("conv", "linear") else None
            own = self._layers[layer["name"]] = _KINDS[layer["kind"]](layer, shapes[layer["inputs"][0]], decay)
            nodes[layer["name"]] = own([nodes[name] for name in layer["inputs"]])
        self._groups = {layer["name"]: layer["groups"] for layer in layers if layer["kind"] == "conv"}
        self._batch_norms = [layer["name"] for layer in layers if layer["kind"] == "bn"]
        self.graph = nn.Model([nodes[layers[0]["name"]]], [nn.LogSoftMax()([nodes[layers[-1]["name"]]])])

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write parameters and running statistics. A convolution has its groups as an axis of their own."""
        for name, layer in self._layers.items():
            own = [arrays[name + what] for what in OWN if name + what in arrays]
            if name in self._groups:
                own[0] = own[0].reshape(self._groups[name], -1, *own[0].shape[1:])
            if own:
                layer.set_weights(own)
        for name in self._batch_norms:
            mean, variance = (arrays[name + what] for what in RUNNING)
            self._layers[name].set_running_mean(mean).set_running_std(variance)

    def read(self, like: Mapping[str, np.ndarray]) -> Arrays:
        """Read parameters and running statistics, by their names and in their shapes in `like`."""
        found: Dict[str, np.ndarray] = {}
        for name, layer in self._layers.items():
            own = [name + what for what in OWN if name + what in like]
            found.update(zip(own, layer.get_weights() if own else ()))
        for name in self._batch_norms:
            arrays = next(iter(self._layers[name].parameters().values()))
            found.update((name + what, arrays[key]) for what, key in zip(RUNNING, RUNNING_OF_BIGDL))
        return {name: np.asarray(found[name], np.float32).reshape(array.shape) for name, array in like.items()}


def _conv(layer: Layer, before: Sequence[int], decay: Any) -> Any:
    sizes = (before[0], layer["shape_out"][0], *_windows(layer))
    return nn.SpatialConvolution(*sizes, n_group=layer["groups"], wRegularizer=decay, with_bias=layer["bias"])


def _pool(layer: Layer, _: Sequence[int], __: Any) -> Any:
    if layer["mode"] == "max":
        return nn.SpatialMaxPooling(*_windows(layer), to_ceil=layer.get("ceil", False))
    return nn.SpatialAveragePooling(*_windows(layer))


def _windows(layer: Layer) -> Sequence[int]:
    """Reverse each pair: BigDL takes the columns first."""
    return [number for key in ("kernel", "stride", "padding") for number in layer[key][::-1]]


def _global_pool(_: Layer, before: Sequence[int], __: Any) -> Any:
    return nn.SpatialAveragePooling(before[2], before[1])


def _lrn(layer: Layer, _: Sequence[int], __: Any) -> Any:
    return nn.SpatialCrossMapLRN(layer["size"], layer["alpha"], layer["beta"], layer["k"])


_KINDS: Dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "global_pool": _global_pool,
    "linear": lambda layer, before, decay: nn.Linear(before[0], layer["shape_out"][0], wRegularizer=decay),
    "bn": lambda layer, before, _: nn.SpatialBatchNormalization(before[0], layer["epsilon"], layer["momentum"]),
    "lrn": _lrn,
    "relu": lambda _, __, ___: nn.ReLU(),
    "dropout": lambda layer, _, __: nn.Dropout(layer["ratio"]),
    "flatten": lambda layer, _, __: nn.Reshape([layer["shape_out"][0]], True),
    "add": lambda _, __, ___: nn.CAddTable(),
    "concat": lambda _, __, ___: nn.JoinTable(1, 3),
}
