"""Plan which samples a rank reads, in which order. Pure."""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import slipway_reader

from .parameters import Cell, Layer, given_parameters

EVAL_SPLITS = ("test", "validation")
MAX_WARMUP_OF_EPOCHS = 10


class Steps(NamedTuple):
    """Steps in all, the window of them that is measured, and the first one that is still to be done."""

    total: int
    first_measured: int
    end_measured: int
    first: int = 0

    def resumed(self, first: int) -> "Steps":
        """Return the steps that are left from `first` on. Steps right after a start are not like the others, so as many are left out as at
        the very start; then as many are measured, as far as there are.
        """
        total = self.total
        return Steps(total, min(self.first_measured + first, total), min(self.end_measured + first, total), first)


class Share(NamedTuple):
    """The part of a batch that one rank reads: samples of a split."""

    split: str
    indices: np.ndarray


class Plan(NamedTuple):
    """The shares of one rank by number: `steps` of training, then those of the split to evaluate on (None: none). Those before `first`
    were used before a resume. Groups: how many samples of a split may stand in one batch, of images all."""

    seed: int
    first: int
    steps: int
    batch_size: int
    rank: int
    world_size: int
    train_groups: Tuple[int, ...]
    eval_split: Optional[str]
    eval_groups: Tuple[int, ...]
    augmentation: str = "none"
    per_epoch: int = 0
    """Steps of an epoch."""
    eval_every: int = 0
    """Steps from one evaluation to the next; 0: only after the last step."""

    @property
    def batches(self) -> int:
        evaluated = sum(-(-samples // self.batch_size) for samples in self.eval_groups)
        return self.steps + max(0, -(-(evaluated - self.rank) // self.world_size))

    @property
    def evaluated_before(self) -> range:
        """Return the steps before which there is an evaluation, beside that after the last one."""
        return range(self.eval_every, self.steps, self.eval_every) if self.eval_every else range(0)

    def share_numbers(self) -> Sequence[int]:
        """Return the numbers of the shares in the order in which this rank reads them: those to evaluate come again in each evaluation."""
        if not self.evaluated_before:
            return range(self.first, self.batches)
        evaluated = range(self.steps, self.batches)
        found = []  # type: List[int]
        for number in range(self.first, self.steps):
            found += (*evaluated, number) if number in self.evaluated_before else (number,)
        return [*found, *evaluated]

    def share(self, number: int) -> Share:
        """Return this rank's share. The global batches of training are the same for every world size. Of the evaluated split, this rank
        reads the batches rank, rank + world_size, ...: every sample is read by one rank, and the last batch may be short.
        """
        if number < self.steps:
            all_ranks = self.batch_size * self.world_size
            indices = slipway_reader.grouped_batch(self.seed, number, self.train_groups, all_ranks, self.rank, self.world_size)
            return Share("train", indices)
        assert self.eval_split is not None
        batch = (number - self.steps) * self.world_size + self.rank
        start = 0
        for samples in self.eval_groups:
            first, batch = batch * self.batch_size, batch - -(-samples // self.batch_size)
            if batch < 0:
                return Share(self.eval_split, np.arange(start + first, start + min(first + self.batch_size, samples)))
            start += samples
        raise IndexError("batch %d of %d" % (number, self.batches))

    def read(self, splits: Mapping[str, Any], number: int, out: Optional[np.ndarray] = None) -> Any:
        """Read what `read_many` of the dataset's `splits` says for a share; into `out`, where that is given. Images that are trained on are
        augmented as the cell says, by whoever reads: by numbers of their sample and epoch alone.
        """
        split, indices = self.share(number)
        if number >= self.steps or self.augmentation == "none":
            return splits[split].read_many(indices, out)
        epoch = number // (self.train_groups[0] // (self.batch_size * self.world_size))
        return splits[split].read_many(indices, out, slipway_reader.Augmentation(self.augmentation, self.seed, epoch))


def make_plan(cell: Cell, dataset: Any, rank: int, world_size: int, first: int = 0) -> Tuple[Steps, Plan]:
    """Return what a rank does in the run of this cell, from step `first` on. Inference evaluates only parameters that it was given."""
    groups = {name: dataset.groups(name) for name in dataset.manifest["splits"]}
    if max(groups["train"]) < cell["global_batch_size"]:
        of_a_length = " of one length" if len(groups["train"]) > 1 else ""
        raise ValueError(
            f"the train split has {max(groups['train'])} samples{of_a_length}, fewer than the global batch of {cell['global_batch_size']}: "
            "choose a smaller batch or fewer processes"
        )
    per_epoch = sum(samples // cell["global_batch_size"] for samples in groups["train"])
    steps = count_steps(cell, per_epoch).resumed(first)
    evaluated = None
    if cell["mode"] == "train" or given_parameters() is not None:
        evaluated = next((name for name in EVAL_SPLITS if sum(groups.get(name, ()))), None)
    if cell.get("evaluate_every") and evaluated is None:
        raise ValueError("evaluate_every: the dataset has no split %s that could be evaluated" % " or ".join(EVAL_SPLITS))
    plan = Plan(
        seed=cell["seed"],
        first=first,
        steps=steps.total,
        batch_size=cell["batch_size"],
        rank=rank,
        world_size=world_size,
        train_groups=groups["train"],
        eval_split=evaluated,
        eval_groups=groups[evaluated] if evaluated else (),
        augmentation=cell.get("augmentation", "none") if cell["mode"] == "train" else "none",
        per_epoch=per_epoch,
        eval_every=per_epoch * (cell.get("evaluate_every") or 0),
    )
    return steps, plan


def shapes_of_sequences(dataset: Any, plan: Plan) -> List[Tuple[int, int]]:
    """Return [batch, tokens] of each length that a rank may meet before evaluation: those with a whole global batch. Of images none."""
    if not isinstance(dataset, slipway_reader.Sequences):
        return []
    lengths = dataset.rows_of_lengths("train")
    return [(plan.batch_size, length) for length, rows in lengths.items() if rows >= plan.batch_size * plan.world_size]


def check_fits(layers: Sequence[Layer], dataset: Any) -> None:
    """Raise ValueError where the layer list is for other samples, or other answers, than the dataset has."""
    found, expected = dataset.shapes, (layers[0]["shape_out"], layers[-1]["shape_out"])
    if tuple(found) != expected:
        raise ValueError("the layer list goes from %s to %s, the dataset asks for %s to %s" % (*expected, *found))


def count_steps(cell: Cell, per_epoch: int) -> Steps:
    """Count the steps of `steps` {warmup, measured, total?}, or of `epochs`: then all but the first steps are measured."""
    if cell["epochs"] is not None:
        total = cell["epochs"] * per_epoch
        return Steps(total, min(MAX_WARMUP_OF_EPOCHS, total // 5), total)
    warmup, end = cell["steps"]["warmup"], cell["steps"]["warmup"] + cell["steps"]["measured"]
    return Steps(cell["steps"].get("total") or end, warmup, end)
