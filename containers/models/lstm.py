"""The LSTM of the comparison dlbench (Shi et al. 2016), a language model after Zaremba et al. 2014: two layers of 256."""

from __future__ import annotations

from containers.models.tokens import TokenLayers

_LIMIT = 0.1
_FEATURES = 256


def lstm(net: TokenLayers) -> None:
    """Build it without dropout, as dlbench has it; each sequence begins with a state of zeros."""
    net.embedding("embedding", _FEATURES, _LIMIT)
    net.lstm("lstm1", _FEATURES, _LIMIT)
    net.lstm("lstm2", _FEATURES, _LIMIT)
    net.dense("softmax", net.vocabulary, _LIMIT)
