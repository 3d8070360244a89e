"""The kinds of layers that networks of token ids have: containers/models/tokens.py says what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Layer = Mapping[str, Any]


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


KINDS: dict[str, Callable[[Layer, Sequence[int]], nn.Module]] = {
    "embedding": lambda layer, _: _Embedding(layer["vocabulary"], layer["shape_out"][1]),
    "positions": lambda layer, shape: _Positions(layer["most"], shape[1]),
    "layer_norm": lambda layer, shape: nn.LayerNorm(shape[1], eps=layer["epsilon"]),
    "gelu": lambda _, __: nn.GELU(approximate="tanh"),
    "attention": lambda layer, _: _Attention(layer["heads"]),
    "lstm": lambda layer, shape: _Lstm(shape[1], layer["shape_out"][1]),
    "tied": lambda _, __: Tied(),
}
