"""Loss and accuracy on samples that were not trained on."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from slipway_program.events import Events

from .feed import Batches, to_device
from .losses import totals
from .preparation import Forward


def evaluate(net: torch.nn.Module, forward: Forward, batches: Batches, split: str, device: torch.device, events: Events) -> float:
    """Mean loss and accuracy over all samples of the split, or all their tokens, each read by one rank; rank 0 writes the event. Returns
    seconds."""
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
