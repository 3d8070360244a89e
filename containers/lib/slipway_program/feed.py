"""Feed batches from the staged dataset, read and decoded by threads while the framework computes."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Callable, Deque, Iterator, Tuple

import numpy as np
from slipway_reader import inputs_and_targets

from .plan import Plan

BATCHES_AHEAD = 4  # per thread

Batches = Iterator[Tuple[np.ndarray, np.ndarray]]


def start_reading(dataset: Any, plan: Plan, threads: int) -> Batches:
    """Yield the batches of `plan` in order: images uint8 [batch, height, width, channels] and labels int64; of token sequences inputs and
    targets as `inputs_and_targets` has them. Each in memory of its own, because a framework may keep it, and not copy it."""
    splits = {name: dataset.split(name) for name in dataset.manifest["splits"]}

    def read(number: int) -> Tuple[np.ndarray, np.ndarray]:
        found = plan.read(splits, number)
        return found if isinstance(found, tuple) else inputs_and_targets(found)

    pool = ThreadPoolExecutor(threads)
    coming = iter(plan.share_numbers())
    waiting: "Deque[Future[Tuple[np.ndarray, np.ndarray]]]" = deque()
    waiting.extend(pool.submit(read, number) for number in islice(coming, threads * BATCHES_AHEAD))
    while waiting:
        batch = waiting.popleft().result()
        waiting.extend(pool.submit(read, number) for number in islice(coming, 1))
        yield batch
    pool.shutdown()


def follow_native(dataset: Any, plan: Plan, native: Batches, alive: Callable[[], object]) -> Batches:
    """Yield batches where the framework reads what it trains on by itself (`native`, from the beginning of its order): step 0 has the
    first batch of the cell all the same, so that its loss can be compared with that of others; and what is evaluated is read as always.
    After a resume the batches that were used are read and left out; `alive` is called for each, because that may take long."""
    if plan.first == 0:
        yield from start_reading(dataset, plan._replace(steps=1, eval_split=None, eval_groups=()), threads=1)
    for number in range(1, plan.steps):
        batch = next(native)
        if number >= plan.first:
            yield batch
        else:
            alive()
    yield from start_reading(dataset, plan._replace(first=plan.steps), threads=1)


def repeat_first(dataset: Any, plan: Plan) -> Batches:
    """Yield the first batch of this rank for every step that is left, from memory: what a step takes without input. What is evaluated is
    read as always."""
    first = list(start_reading(dataset, plan._replace(steps=plan.first + 1, eval_split=None, eval_groups=()), threads=1))
    for _ in range(plan.first, plan.steps):
        yield first[0]
    yield from start_reading(dataset, plan._replace(first=plan.steps), threads=1)
