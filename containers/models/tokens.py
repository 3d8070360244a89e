"""Define layers of networks that read token ids. A sample is a sequence; keys of these layers are as in layers.py.

    shape_out [tokens] of the input, [tokens, features] of all others; macs: of a whole sequence of that length

and by kind: `embedding` vocabulary, initial_limit; `positions` most, initial_limit (a vector for each place, added); `layer_norm` epsilon;
`gelu` (the form with tanh); `attention` heads (causal, of queries, keys and values that lie one after the other in the features of its
input); `lstm` initial_limit (one layer, its gates in the order input, forget, cell, output, one bias, from a state of zeros); `linear` as
in layers.py, on the features; `tied` embedding (logits by the weights of that layer, without a bias).

Starting weights are drawn as layers.py says; of `lstm` those of the input, (4 x features, features before), by the layer's name with
`.weight_ih`, and those of its own output, (4 x features, features), with `.weight_hh`. `layer_norm` starts as the identity.
"""

from collections.abc import Callable
from math import sqrt

from containers.models.layers import LayerList, ShapeTooSmall


class TokenLayers(LayerList):
    """Layers in order, for sequences of `length` tokens out of a vocabulary of so many."""

    def __init__(self, vocabulary: int, length: int) -> None:
        self.layers = []
        self._shapes = {}
        self._last = ""
        self.vocabulary, self.length = vocabulary, length
        self._add("input", "input", [], [length])

    def embedding(self, name: str, features: int, initial_limit: float) -> str:
        numbers = {"vocabulary": self.vocabulary, "initial_limit": initial_limit}
        return self._add(name, "embedding", [self._last], [self.length, features], parameters=self.vocabulary * features, **numbers)

    def positions(self, name: str, most: int, initial_limit: float) -> str:
        """Add a vector for each place in the sequence, of which there are `most`."""
        if self.length > most:
            raise ShapeTooSmall(f"layer {name!r}: a sequence of {self.length} tokens, and it has {most} positions")
        features = self.shape()[1]
        return self._add(name, "positions", [self._last], self.shape(), parameters=most * features, most=most, initial_limit=initial_limit)

    def layer_norm(self, name: str, epsilon: float = 1e-5) -> str:
        """Normalise to mean 0 and deviation 1 over the features of each token, with scale and shift."""
        return self._add(name, "layer_norm", [self._last], self.shape(), parameters=2 * self.shape()[1], epsilon=epsilon)

    def gelu(self, name: str) -> str:
        """Add 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
        return self._add(name, "gelu", [self._last], self.shape())

    def dense(self, name: str, features: int, initial_limit: float) -> str:
        """Add a fully connected layer with bias, for each token by itself."""
        weights = self.shape()[1] * features
        counts = {"parameters": weights + features, "macs": weights * self.length}
        return self._add(name, "linear", [self._last], [self.length, features], **counts, bias=True, initial_limit=initial_limit)

    def attention(self, name: str, heads: int) -> str:
        """Add attention: each token attends to itself and all before it. Multiply-adds are those of the whole square, as the field counts
        them."""
        features = self.shape()[1] // 3
        macs = 2 * self.length * self.length * features
        return self._add(name, "attention", [self._last], [self.length, features], macs=macs, heads=heads)

    def lstm(self, name: str, features: int, initial_limit: float) -> str:
        weights = 4 * features * (self.shape()[1] + features)
        counts = {"parameters": weights + 4 * features, "macs": weights * self.length}
        return self._add(name, "lstm", [self._last], [self.length, features], **counts, initial_limit=initial_limit)

    def tied(self, name: str, embedding: str) -> str:
        """Add a number for each word of the vocabulary, by the weights of the embedding."""
        macs = self.length * self.shape()[1] * self.vocabulary
        return self._add(name, "tied", [self._last], [self.length, self.vocabulary], macs=macs, embedding=embedding)


# GPT-2 (Radford et al. 2019): blocks of attention and of two fully connected layers, each behind a layer normalisation and added to what
# went in. The embedding makes the logits too. Without dropout.


POSITIONS = 1024
_DEVIATION = 0.02


def gpt2(blocks: int, features: int, heads: int) -> Callable[[TokenLayers], None]:
    """Build GPT-2. Starting weights have its deviation: 0.02, and what is added to the residual less, the more blocks there are."""
    limit = sqrt(3) * _DEVIATION

    def add_layers(net: TokenLayers) -> None:
        net.embedding("wte", features, limit)
        last = net.positions("wpe", POSITIONS, limit)
        for number in range(blocks):
            name = f"h{number}"
            net.layer_norm(f"{name}.ln1")
            net.dense(f"{name}.qkv", 3 * features, limit)
            net.attention(f"{name}.attention", heads)
            last = net.add(f"{name}.add1", net.dense(f"{name}.projection", features, limit / sqrt(2 * blocks)), last)
            net.layer_norm(f"{name}.ln2")
            net.dense(f"{name}.fc1", 4 * features, limit)
            net.gelu(f"{name}.gelu")
            last = net.add(f"{name}.add2", net.dense(f"{name}.fc2", features, limit / sqrt(2 * blocks)), last)
        net.layer_norm("ln")
        net.tied("logits", "wte")

    return add_layers


# The LSTM of the comparison dlbench (Shi et al. 2016), a language model after Zaremba et al. 2014: two layers of 256.


_LIMIT = 0.1
_FEATURES = 256


def lstm(net: TokenLayers) -> None:
    """Build it without dropout, as dlbench has it; each sequence begins with a state of zeros."""
    net.embedding("embedding", _FEATURES, _LIMIT)
    net.lstm("lstm1", _FEATURES, _LIMIT)
    net.lstm("lstm2", _FEATURES, _LIMIT)
    net.dense("softmax", net.vocabulary, _LIMIT)
