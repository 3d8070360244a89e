"""Train or infer in one rank, for every framework that gives a Trainer: data, steps, checkpoints, events. Read it from `run` downwards."""

import math
import os
from pathlib import Path
from typing import Any, Callable, Tuple

import numpy as np
import slipway_reader
from slipway_events import EventFile

from . import checkpoint, parameters
from .checkpoint import CheckpointRequested, Request
from .evaluation import evaluate, mean_loss
from .feed import follow_native, repeat_first, start_reading
from .loop import Around, Evaluations, HostClock, Moments, run_steps
from .parameters import Arrays, Cell, Facts
from .plan import check_fits, make_plan, shapes_of_sequences
from .provenance import common_provenance
from .rank import LossNotFinite
from .trainer import Trainer, dropout_seed, drops

MakeTrainer = Callable[[Cell, Any, Arrays], Trainer]
"""(cell, dataset, the parameters and running statistics to start from) -> this rank, joined to the others."""


def run(cell: Cell, data: Path, out: Path, events: EventFile, make_trainer: MakeTrainer) -> int:
    """Run the training or the inference that `cell` describes, from the dataset in `data`; events and, from rank 0, the parameters go to
    `out`. The exit code: 0, or 43 where a checkpoint was wanted before the end."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    training = cell["mode"] == "train"
    keep_to_cores(cell["threads"])
    dataset = slipway_reader.open_dataset(str(data), cell.get("crop_size"))
    resumed = checkpoint.find_checkpoint(cell)
    steps, plan = make_plan(cell, dataset, rank, world_size, resumed.step if resumed else 0)
    reader = cell.get("reader", "slipway")
    native = reader == "native"
    batches = iter(()) if native else repeat_first(dataset, plan) if reader == "memory" else start_reading(dataset, plan, threads=1)

    trainer = make_trainer(cell, dataset, first_parameters(cell, dataset))
    events.emit(
        "run_start",
        rank=rank,
        world_size=world_size,
        framework=trainer.framework,
        framework_version=trainer.version,
        device=trainer.device,
        hostname=os.uname().nodename,
        parameters=parameters.count_of(trainer.state()),
        provenance=dict(common_provenance(), threads=cell["threads"], **trainer.provenance()),
    )
    if resumed is not None:
        load_checkpoint(trainer, resumed.path)
    if native:
        batches = follow_native(dataset, plan, trainer.native_batches(dataset, plan.batch_size), lambda: events.phase("init"))

    for shape in shapes_of_sequences(dataset, plan):
        trainer.prepare(shape, training)
        events.phase("init")  # a sign of life

    has_dropout = drops(cell["model_layers"])

    def step(number: int, images: np.ndarray, labels: np.ndarray) -> Tuple[Any, Moments]:
        if has_dropout:
            trainer.dropout_seed = dropout_seed(cell["seed"], rank, number)
        return trainer.step(images, labels), trainer.laps.take()

    def infer(_: int, images: np.ndarray, labels: np.ndarray) -> Tuple[Any, Moments]:
        return mean_loss(trainer.outputs(images), labels), ()

    request = Request(rank)
    eval_s = []
    evaluate_at = lambda number: eval_s.append(evaluate(trainer, request.watch(batches, number), plan, number, events))  # noqa: E731
    try:
        around = Around(clock=HostClock(), barrier=trainer.barrier, events=events, request=request)
        times = run_steps(steps, step if training else infer, batches, around, Evaluations(plan.evaluated_before, evaluate_at))
        check_finite(trainer.state(), steps.total)
        if plan.eval_split is not None:
            evaluate_at(steps.total)
    except CheckpointRequested as wanted:
        events.phase("checkpoint")
        num_bytes = save_checkpoint(trainer, out, cell, wanted.step)
        events.emit("checkpoint", file=checkpoint.FILE_NAME, bytes=num_bytes, step=wanted.step, resumable=True)
        return checkpoint.EXIT_CODE
    state = trainer.state()
    if rank == 0 and training and cell["save_parameters"]:
        events.phase("checkpoint")
        num_bytes = parameters.write_parameters(out / parameters.FILE_NAME, state, cell)
        events.emit("checkpoint", file=parameters.FILE_NAME, bytes=num_bytes)
    events.phase("checksum")
    memory, source = trainer.memory()
    told = dict(summary(state), max_memory_allocated_bytes=memory, memory_source=source)
    events.emit("run_stop", steps=steps.total, **times, eval_s=sum(eval_s) or None, **told)
    trainer.leave()
    return 0


def keep_to_cores(threads: int) -> None:
    """Bind this rank to as many of the node's cores as it may have threads, other ones for each rank. The thread pools of XLA and
    TensorFlow are as large as the number of cores that they see.
    """
    cores = sorted(os.sched_getaffinity(0))
    first = int(os.environ["LOCAL_RANK"]) * threads
    if first + threads <= len(cores):
        os.sched_setaffinity(0, cores[first : first + threads])


def first_parameters(cell: Cell, dataset: Any) -> Arrays:
    """Return the parameters that the run starts from, by seed or from a file. Raises ValueError where dataset, layer list and counts do
    not agree."""
    layers = cell["model_layers"]
    check_fits(layers, dataset)
    arrays = parameters.starting_parameters(layers, cell["seed"])
    if parameters.count_of(arrays) != cell["model_parameters"]:
        raise ValueError(
            "%s has %d parameters here and %d in the cell" % (cell["model"], parameters.count_of(arrays), cell["model_parameters"])
        )
    given = parameters.given_parameters()
    if given is not None:
        arrays = parameters.read_parameters(given, {name: array.shape for name, array in arrays.items()})
    return arrays


def save_checkpoint(trainer: Trainer, out: Path, cell: Cell, step: int) -> int:
    arrays = {"net.%s" % name: np.ascontiguousarray(array) for name, array in sorted(trainer.state().items())}
    arrays.update({"momentum.%s" % name: np.ascontiguousarray(array) for name, array in sorted(trainer.momentum().items())})
    return checkpoint.write_checkpoint(out, cell, arrays, step, {})


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Load the file. Raises ValueError when it is damaged, or of another network."""
    arrays, _ = checkpoint.read_checkpoint(path)
    state = {"net.%s" % name: array.shape for name, array in trainer.state().items()}
    state.update({"momentum.%s" % name: array.shape for name, array in trainer.momentum().items()})
    checkpoint.check_shapes(path, arrays, state)
    trainer.restore(
        *({name[len(kind) :]: array for name, array in arrays.items() if name.startswith(kind)} for kind in ("net.", "momentum."))
    )


def check_finite(state: Arrays, steps: int) -> None:
    """Raise LossNotFinite where a parameter is none: what lies behind a ReLU may not show it, as in TensorFlow."""
    if not math.isfinite(parameters.norm_of(state)):
        raise LossNotFinite("after step %d the parameters of the network are not finite" % (steps - 1))


def summary(state: Arrays) -> Facts:
    """Return count, norm and checksum of the parameters. The checksum of a large network takes a second."""
    return {"parameters": parameters.count_of(state), "norm": parameters.norm_of(state), "checksum": parameters.checksum_of(state)}
