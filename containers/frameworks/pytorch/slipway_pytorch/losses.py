"""The loss of a batch, and what an evaluation counts: of images by their class, of token sequences by the token that follows each."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

NO_TARGET = -1


def mean_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of all samples alike. The loss of a sequence is the mean over its tokens, so that what a global batch trains is the same however
    many ranks share it, and whichever of its sequences are short."""
    if labels.dim() == 1:
        return cross_entropy(outputs, labels)
    return (_of_tokens(outputs, labels).sum(1) / (labels != NO_TARGET).sum(1)).mean()


def totals(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of losses, how many are right, how many there are, of images or of tokens; and how many samples. What has a negative label is
    none."""
    counted = labels >= 0
    right = (outputs.argmax(-1) == labels).sum()
    losses = cross_entropy(outputs, labels, reduction="sum") if labels.dim() == 1 else _of_tokens(outputs, labels).sum()
    samples = counted.sum() if labels.dim() == 1 else counted.any(1).sum()
    return torch.stack([losses.double(), right.double(), counted.sum().double(), samples.double()])


def _of_tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[batch, tokens]; 0 where there is no target."""
    return cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=NO_TARGET, reduction="none").view_as(labels)
