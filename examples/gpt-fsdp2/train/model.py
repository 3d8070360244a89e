"""A decoder-only transformer as GPT-2 is one: learned positions, layers with the norm before, the output's weights those of the input."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY = 256
"""Tokens are bytes."""


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attend(self.norm_1(x)).chunk(3, dim=-1)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.contract(nn.functional.gelu(self.expand(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, seq_len: int) -> None:
        super().__init__()
        self.seq_len = seq_len
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(seq_len, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """The loss of each token of the sequences but the first, in the mean."""
        before, after = sequences[:, :-1], sequences[:, 1:]
        x = self.tokens(before) + self.positions.weight[: before.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = nn.functional.linear(self.norm(x), self.tokens.weight)
        return cross_entropy(logits.float().flatten(0, 1), after.flatten())

    def flop_per_token(self) -> float:
        """Of forward and backward, without what is computed again: appendix B of PaLM (Chowdhery et al., 2022). 6 for each parameter that
        multiplies, which those of the positions do not; 12 for each layer, unit of width and token of the sequence."""
        multiplying = sum(parameter.numel() for parameter in self.parameters()) - self.positions.weight.numel()
        return 6.0 * multiplying + 12.0 * len(self.layers) * self.tokens.embedding_dim * self.seq_len
