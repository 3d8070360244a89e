"""Loss and accuracy on samples that were not trained on."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from slipway_program.events import Events
from torch.nn.functional import cross_entropy

from .feed import Batches, to_device
from .preparation import Forward

NO_TARGET = -1


def mean_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean of all samples alike. The loss of a sequence is the mean over its tokens, so that what a global batch trains is the
    same however many ranks share it, and whichever of its sequences are short.
    """
    if labels.dim() == 1:
        return cross_entropy(outputs, labels)
    return (_of_tokens(outputs, labels).sum(1) / (labels != NO_TARGET).sum(1)).mean()


def totals(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum of losses, how many are right, how many there are, of images or of tokens; and how many samples. What has a negative
    label is none.
    """
    counted = labels >= 0
    right = (outputs.argmax(-1) == labels).sum()
    losses = cross_entropy(outputs, labels, reduction="sum") if labels.dim() == 1 else _of_tokens(outputs, labels).sum()
    samples = counted.sum() if labels.dim() == 1 else counted.any(1).sum()
    return torch.stack([losses.double(), right.double(), counted.sum().double(), samples.double()])


def _of_tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token, [batch, tokens]; 0 where there is no target."""
    return cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=NO_TARGET, reduction="none").view_as(labels)


def evaluate(net: torch.nn.Module, forward: Forward, batches: Batches, split: str, device: torch.device, events: Events) -> float:
    """Compute mean loss and accuracy over all samples of the split, or all their tokens, each read by one rank; rank 0 writes the event.
    Returns seconds.
    """
    events.phase("eval")
    start = time.perf_counter()
    for buffer in net.buffers():  # running statistics differ between ranks; what is saved are those of rank 0
        dist.broadcast(buffer, 0)
    net.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels_read in batches:
            sums += totals(forward(images), to_device(labels_read, device).long())
            events.phase("eval")  # a sign of life
    dist.all_reduce(sums)
    loss, correct, count, samples = sums.tolist()
    if dist.get_rank() == 0:
        events.emit("eval", split=split, loss=loss / count, accuracy=correct / count, samples=int(samples))
    return time.perf_counter() - start
