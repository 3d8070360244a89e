"""Batches from the staged dataset, read and decoded by threads while the framework computes."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Deque, Iterator, Tuple

import numpy as np

from .plan import Plan

BATCHES_AHEAD = 4  # per thread

Batches = Iterator[Tuple[np.ndarray, np.ndarray]]


def start_reading(dataset: Any, plan: Plan, threads: int) -> Batches:
    """The batches of `plan` in order: images uint8 [batch, height, width, channels] and labels int64. Each in memory of its own, because a
    framework may keep it, and not copy it."""
    splits = {name: dataset.split(name) for name in dataset.manifest["splits"]}

    def read(number: int) -> Tuple[np.ndarray, np.ndarray]:
        split, indices = plan.share(number)
        images, labels = splits[split].read_many(indices)
        return images, labels

    pool = ThreadPoolExecutor(threads)
    coming = iter(range(plan.first, plan.batches))
    waiting: "Deque[Future[Tuple[np.ndarray, np.ndarray]]]" = deque()
    waiting.extend(pool.submit(read, number) for number in islice(coming, threads * BATCHES_AHEAD))
    while waiting:
        batch = waiting.popleft().result()
        waiting.extend(pool.submit(read, number) for number in islice(coming, 1))
        yield batch
    pool.shutdown()
