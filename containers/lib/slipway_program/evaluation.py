"""Compute loss and accuracy on samples that were not trained on, from a network's outputs."""

import time
from itertools import islice
from typing import Iterable, Tuple

import numpy as np
from slipway_events import EventFile

from .feed import Batches
from .plan import Plan
from .trainer import Trainer


def report(events: EventFile, plan: Plan, step: int, totals: Iterable[float], start: float) -> float:
    """End an evaluation before `step` that began at `start`, and return its seconds; rank 0 writes the event. `totals`: over all ranks the
    sum of the losses, the number of right answers, the number of all answers, and the number of samples."""
    loss, correct, count, samples = map(float, totals)
    seconds = time.perf_counter() - start
    if plan.rank == 0:
        found = {"split": plan.eval_split, "loss": loss / count, "accuracy": correct / count, "samples": int(samples)}
        events.emit("eval", step=step, epoch=step / plan.per_epoch, eval_s=seconds, **found)
    return seconds


def evaluate(trainer: Trainer, batches: Batches, plan: Plan, step: int, events: EventFile) -> float:
    """Compute mean loss and accuracy over all samples of the split, or all their tokens, each read by one rank; rank 0 writes the event.
    `batches` begin with those to evaluate. Returns seconds."""
    events.phase("eval")
    start = time.perf_counter()
    totals = np.zeros(4)  # loss, correct, how many there are of these, samples
    for images, labels in islice(batches, plan.batches - plan.steps):
        losses, correct = judge(outputs_of(trainer, images, plan.batch_size), labels)
        totals += [losses.sum(), correct, (labels >= 0).sum(), len(labels)]
        events.phase("eval")  # a sign of life
    return report(events, plan, step, trainer.total(totals), start)


def outputs_of(trainer: Trainer, images: np.ndarray, batch_size: int) -> np.ndarray:
    """Compute the outputs of a batch that may be short: it is filled up, because frameworks compile once more for another shape."""
    if len(images) == batch_size:
        return trainer.outputs(images)
    full = np.zeros((batch_size, *images.shape[1:]), images.dtype)
    full[: len(images)] = images
    return trainer.outputs(full)[: len(images)]


def judge(outputs: np.ndarray, labels: np.ndarray) -> Tuple[np.ndarray, int]:
    """Return (cross entropy of each sample, how many are right); of token sequences of each token, 0 where there is no target."""
    flat, targets = outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1)
    shifted = flat.astype(np.float64) - flat.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(targets)), np.maximum(targets, 0)]
    return np.where(targets >= 0, losses, 0.0).reshape(labels.shape), int((flat.argmax(axis=1) == targets).sum())


def mean_loss(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over the samples of a batch, where that of a sequence is the mean over its tokens."""
    losses, _ = judge(outputs, labels)
    of_samples = losses if losses.ndim == 1 else losses.sum(axis=1) / (labels >= 0).sum(axis=1)
    return float(of_samples.mean())
