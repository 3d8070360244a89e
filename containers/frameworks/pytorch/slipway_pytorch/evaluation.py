"""Loss and accuracy on samples that were not trained on."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from slipway_program.events import Events
from torch.nn.functional import cross_entropy

from .feed import Batches, to_device
from .preparation import Forward


def evaluate(net: torch.nn.Module, forward: Forward, batches: Batches, split: str, device: torch.device, events: Events) -> float:
    """Mean loss and accuracy over all samples of the split, each read by one rank; rank 0 writes the event. Returns seconds."""
    events.phase("eval")
    start = time.perf_counter()
    for buffer in net.buffers():  # running statistics differ between ranks; what is saved are those of rank 0
        dist.broadcast(buffer, 0)
    net.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, samples
    with torch.no_grad():
        for images, labels_read in batches:
            outputs, labels = forward(images), to_device(labels_read, device)
            correct = (outputs.argmax(1) == labels).sum()
            totals += torch.stack([cross_entropy(outputs, labels, reduction="sum"), correct, torch.tensor(len(labels), device=device)])
            events.phase("eval")  # a sign of life
    dist.all_reduce(totals)
    loss, correct_count, samples = totals.tolist()
    if dist.get_rank() == 0:
        events.emit("eval", split=split, loss=loss / samples, accuracy=correct_count / samples, samples=int(samples))
    return time.perf_counter() - start
