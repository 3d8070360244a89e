"""A network from a layer list. The list comes with the cell; there is no second description of a model here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from slipway_program.parameters import ROWS, Arrays, Layer, starting_rows
from torch import nn
from torch.nn import functional


class _Embedding(nn.Module):
    def __init__(self, vocabulary: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, features))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.embedding(tokens, self.weight)


class _Positions(_Embedding):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[: x.shape[1]]


class _Lstm(nn.Module):
    """An LSTM with one bias, where nn.LSTM has two that are added."""

    def __init__(self, features_in: int, features: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * features, features_in))
        self.weight_hh = nn.Parameter(torch.empty(4 * features, features))
        self.bias = nn.Parameter(torch.zeros(4 * features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(1, len(x), self.weight_hh.shape[1])
        weights = [self.weight_ih, self.weight_hh, self.bias, torch.zeros_like(self.bias)]
        outputs: torch.Tensor = torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, self.training, False, True)[0]
        return outputs


class _Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in x.chunk(3, dim=2))
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True).transpose(1, 2).flatten(2)


class Tied(nn.Module):
    """A linear layer with the weight of the embedding. The list hides the embedding, whose weight would else be here a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding: list[nn.Module] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.embedding[0].weight)


class _Conv(nn.Conv2d):
    def reset_parameters(self) -> None:
        """Do nothing, since the weights are filled in below; nn.utils.skip_init would load sympy."""


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Do nothing, since the weights are filled in below."""


def _conv(layer: Layer, shape_in: Sequence[int]) -> nn.Module:
    return _Conv(
        shape_in[0],
        layer["shape_out"][0],
        tuple(layer["kernel"]),
        stride=tuple(layer["stride"]),
        padding=tuple(layer["padding"]),
        groups=layer["groups"],
        bias=layer["bias"],
    )


def _pool(layer: Layer, _: Sequence[int]) -> nn.Module:
    kernel, stride, padding = (tuple(layer[key]) for key in ("kernel", "stride", "padding"))
    if layer["mode"] == "max":
        return nn.MaxPool2d(kernel, stride, padding, ceil_mode=layer.get("ceil", False))
    return nn.AvgPool2d(kernel, stride, padding)


class _Add(nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second


class _Concat(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat(inputs, 1)


_KINDS: dict[str, Callable[[Layer, Sequence[int]], nn.Module]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": lambda layer, shape: _Linear(shape[-1], layer["shape_out"][-1], bias=layer["bias"]),
    "bn": lambda layer, shape: nn.BatchNorm2d(shape[0], eps=layer["epsilon"], momentum=layer["momentum"]),
    "relu": lambda _, __: nn.ReLU(),
    "lrn": lambda layer, _: nn.LocalResponseNorm(layer["size"], alpha=layer["alpha"], beta=layer["beta"], k=layer["k"]),
    "dropout": lambda layer, _: nn.Dropout(layer["ratio"]),
    "add": lambda _, __: _Add(),
    "concat": lambda _, __: _Concat(),
    "global_pool": lambda _, __: nn.AdaptiveAvgPool2d(1),
    "flatten": lambda _, __: nn.Flatten(),
    "embedding": lambda layer, _: _Embedding(layer["vocabulary"], layer["shape_out"][1]),
    "positions": lambda layer, shape: _Positions(layer["most"], shape[1]),
    "layer_norm": lambda layer, shape: nn.LayerNorm(shape[1], eps=layer["epsilon"]),
    "gelu": lambda _, __: nn.GELU(approximate="tanh"),
    "attention": lambda layer, _: _Attention(layer["heads"]),
    "lstm": lambda layer, shape: _Lstm(shape[1], layer["shape_out"][1]),
    "tied": lambda _, __: Tied(),
}


class Network(nn.Module):
    """The layers in their order; a layer's output is dropped after its last reader. Input and output: [batch, channels, height, width] and
    [batch, classes], or token ids [batch, tokens] and [batch, tokens, vocabulary]."""

    def __init__(self, layers: Sequence[Layer], seed: int) -> None:
        super().__init__()
        self._plan: list[tuple[str, nn.Module, list[str], list[str]]] = []
        self._first, self._last = layers[0]["name"], layers[-1]["name"]
        shapes = {layer["name"]: layer["shape_out"] for layer in layers}
        last_reader = {name: layer["name"] for layer in layers for name in layer["inputs"]}
        for layer in layers[1:]:
            name = layer["name"]
            module = _KINDS[layer["kind"]](layer, shapes[layer["inputs"][0]])
            if isinstance(module, nn.ReLU):  # in place, unless somebody reads later what it would write over
                module.inplace = last_reader[layer["inputs"][0]] == name
            if (count := count_parameters(module)) != layer["parameters"]:
                raise ValueError(f"layer {name!r} has {count} parameters here and {layer['parameters']} in the layer list")
            _fill(layer, module, seed)
            if isinstance(module, Tied):
                module.embedding.append(self.get_submodule(layer["embedding"].replace(".", "/")))
            self.add_module(name.replace(".", "/"), module)
            self._plan.append((name, module, layer["inputs"], [read for read in layer["inputs"] if last_reader[read] == name]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = {self._first: images}
        for name, module, inputs, finished in self._plan:
            values[name] = module(*[values[read] for read in inputs])
            for read in finished:
                del values[read]
        return values[self._last]

    def load_named(self, arrays: Arrays) -> None:
        """Take over numbers that are named as in `named_state`."""
        for name, value in self.named_state().items():
            value.copy_(torch.from_numpy(arrays[name]))

    def named_state(self) -> dict[str, torch.Tensor]:
        """Return parameters and running statistics by `<layer>.<what>`, as a file of parameters holds them."""
        state = {name.replace("/", "."): value for name, value in self.state_dict().items()}
        return {name: value for name, value in state.items() if not name.endswith(".num_batches_tracked")}


def count_parameters(module: nn.Module) -> int:
    """Count the trainable numbers."""
    return sum(parameter.numel() for parameter in module.parameters())


def _fill(layer: Layer, module: nn.Module, seed: int) -> None:
    """Fill in the starting weights of one layer, the same in every framework. Normalisations start as the identity by themselves."""
    if "initial_limit" in layer:
        for what, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.detach().zero_()
                continue
            for rows, numbers in zip(parameter.detach().split(ROWS), starting_rows(layer, tuple(parameter.shape), seed, what), strict=True):
                rows.copy_(torch.from_numpy(numbers))
