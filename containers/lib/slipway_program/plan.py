"""Which samples a rank reads, in which order. Pure."""

from typing import Any, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import slipway_reader

EVAL_SPLITS = ("test", "validation")
MOST_WARMUP_OF_EPOCHS = 10


class Steps(NamedTuple):
    """Steps in all, the window of them that is measured, and the first one that is still to be done."""

    total: int
    first_measured: int
    end_measured: int
    first: int = 0

    def resumed(self, first: int) -> "Steps":
        """What is left from `first` on. Steps right after a start are not like the others, so as many are left out as at the very start;
        then as many are measured, as far as there are."""
        total = self.total
        return Steps(total, min(self.first_measured + first, total), min(self.end_measured + first, total), first)


class Share(NamedTuple):
    """The part of a batch that one rank reads: samples of a split."""

    split: str
    indices: np.ndarray


class Plan(NamedTuple):
    """The shares of one rank by number: `steps` of training, then those of the split to evaluate on (None: none). Those before `first`
    were used before a resume."""

    seed: int
    first: int
    steps: int
    batch_size: int
    rank: int
    world_size: int
    train_samples: int
    eval_split: Optional[str]
    eval_samples: int

    @property
    def batches(self) -> int:
        """Of training and evaluation together."""
        left = self.eval_samples - self.rank * self.batch_size
        return self.steps + max(0, -(-left // (self.world_size * self.batch_size)))

    def share(self, number: int) -> Share:
        """The global batches of training are the same for every world size. Of the evaluated split, this rank reads the batches rank,
        rank + world_size, ...: every sample is read by one rank, and the last batch may be short."""
        if number < self.steps:
            all_ranks = self.batch_size * self.world_size
            batches = slipway_reader.batch_indices(self.seed, number, 1, self.train_samples, all_ranks, self.rank, self.world_size)
            return Share("train", next(batches))
        assert self.eval_split is not None
        first = ((number - self.steps) * self.world_size + self.rank) * self.batch_size
        return Share(self.eval_split, np.arange(first, min(first + self.batch_size, self.eval_samples)))


def make_plan(cell: Mapping[str, Any], dataset: Any, rank: int, world_size: int, first: int = 0) -> Tuple[Steps, Plan]:
    """What a rank does in the run of this cell, from step `first` on. Inference evaluates only parameters that it was given."""
    samples = {name: split["samples"] for name, split in dataset.manifest["splits"].items()}
    if samples["train"] < cell["global_batch_size"]:
        raise ValueError(
            f"the train split has {samples['train']} samples, fewer than the global batch of {cell['global_batch_size']}: "
            "choose a smaller batch or fewer processes"
        )
    steps = count_steps(cell, samples["train"]).resumed(first)
    evaluated = None
    if cell["mode"] == "train" or cell.get("load_parameters"):
        evaluated = next((name for name in EVAL_SPLITS if samples.get(name)), None)
    plan = Plan(
        seed=cell["seed"],
        first=first,
        steps=steps.total,
        batch_size=cell["batch_size"],
        rank=rank,
        world_size=world_size,
        train_samples=samples["train"],
        eval_split=evaluated,
        eval_samples=samples[evaluated] if evaluated else 0,
    )
    return steps, plan


def count_steps(cell: Mapping[str, Any], train_samples: int) -> Steps:
    """From `steps` {warmup, measured, total?}, or from `epochs`: then all but the first steps are measured."""
    if cell["epochs"] is not None:
        total = cell["epochs"] * (train_samples // cell["global_batch_size"])
        return Steps(total, min(MOST_WARMUP_OF_EPOCHS, total // 5), total)
    warmup, end = cell["steps"]["warmup"], cell["steps"]["warmup"] + cell["steps"]["measured"]
    return Steps(cell["steps"].get("total") or end, warmup, end)
