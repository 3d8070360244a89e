"""GPT-2 (Radford et al. 2019): blocks of attention and of two fully connected layers, each behind a layer normalisation and added to what
went in. The embedding makes the logits too. Without dropout."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from containers.models.tokens import TokenLayers

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
