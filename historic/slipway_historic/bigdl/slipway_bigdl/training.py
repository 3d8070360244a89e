"""A training from start to end: Spark takes the samples of each node from the copy that is staged there, BigDL's optimizer does the rest.

It chooses its own order of the samples. So the loss of step 0 is that of the first batch of the cell, computed before the training, and
those after it cannot be compared with other frameworks.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator

import bigdl
import numpy as np
import slipway_reader
from bigdl.dllib.nn.criterion import ClassNLLCriterion
from bigdl.dllib.nncontext import init_nncontext, init_spark_conf
from bigdl.dllib.optim.optimizer import SGD, MaxIteration, Optimizer
from bigdl.dllib.utils.common import Sample
from slipway_events import EventFile
from slipway_program.driver import check_finite, first_parameters, summary
from slipway_program.evaluation import evaluate
from slipway_program.feed import start_reading
from slipway_program.parameters import FILE_NAME, Arrays, Cell, count_of, write_parameters
from slipway_program.plan import make_plan
from slipway_program.provenance import common_provenance
from slipway_program.rank import LossNotFinite
from slipway_program.trainer import Trainer

from .lines import Lines
from .network import Network
from .spark import cores_of, environment, memory_mib, wait_for

VERSION = "2.4.0"
LAST_LINE_S = 10.0


class Trained(Trainer):
    """The network on the driver, to evaluate with."""

    def __init__(self, graph: Any, mean: np.ndarray, scale: np.ndarray) -> None:
        self._graph, self._mean, self._scale = graph.training(False), mean, scale

    def outputs(self, images: np.ndarray) -> np.ndarray:
        return np.asarray(self._graph.forward(normalised(images, self._mean, self._scale)))

    def total(self, values: np.ndarray) -> np.ndarray:
        return values


def normalised(images: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the images with mean 0 and deviation 1 over the training split; channels first."""
    return np.ascontiguousarray(((images.astype(np.float32) - mean) * scale).transpose(0, 3, 1, 2))


def connect(cell: Cell, head: str, port: int) -> Any:
    """Connect to Spark, and wait until all workers are there."""
    os.environ.update(environment(head))
    wait_for(head, port)
    memory = "%dm" % memory_mib()
    jars = sorted(map(str, Path(bigdl.__path__[0]).glob("share/*/lib/*.jar")))
    conf = init_spark_conf().setMaster("spark://%s:%d" % (head, port))
    settings = {
        "spark.driver.host": head,
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.executor.cores": cores_of(cell),
        "spark.cores.max": cores_of(cell) * cell["nodes"],
        "spark.executor.extraClassPath": ":".join(jars),  # or its classes are found twice
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.ui.enabled": "false",
    }
    for name, value in settings.items():
        conf.set(name, str(value))
    return init_nncontext(conf)


def share_of(mean: np.ndarray, scale: np.ndarray, parts: int) -> Any:
    """Return what reads a node's share of the training split. It holds all that it needs, since workers do not have this folder on their
    path.
    """

    def read(part: int) -> Iterator[Any]:
        import os

        import slipway_reader

        split = slipway_reader.open_dataset(os.environ["SLIPWAY_DATA"]).split("train")
        for first in range(part, len(split), parts * 64):
            numbers = np.arange(first, min(first + parts * 64, len(split)), parts)
            images, labels = split.read_many(numbers)
            ready = np.ascontiguousarray(((images.astype(np.float32) - mean) * scale).transpose(0, 3, 1, 2))
            for image, label in zip(ready, labels):
                yield Sample.from_ndarray(image, np.array(label + 1.0))

    return read


def first_loss(cell: Cell, dataset: Any, arrays: Arrays, mean: np.ndarray, scale: np.ndarray) -> float:
    """Return the loss of the first batch, in the shares of its processes, by each of which batch normalisation is. It has networks of its
    own: convolutions of BigDL stay with the weights of their first pass, where the optimizer takes the network over after that.
    """
    losses, world_size = [], cell["global_batch_size"] // cell["batch_size"]
    for rank in range(world_size):
        _, plan = make_plan(cell, dataset, rank, world_size)
        images, labels = next(start_reading(dataset, plan, threads=1))
        net = Network(cell["model_layers"], 0.0)
        net.write(arrays)
        losses.append(float(ClassNLLCriterion().forward(net.graph.forward(normalised(images, mean, scale)), labels + 1.0)))
    return sum(losses) / world_size


def run(cell: Cell, data: Path, out: Path, events: EventFile) -> int:
    dataset = slipway_reader.open_dataset(str(data))
    batch, cores = cell["global_batch_size"], cores_of(cell) * cell["nodes"]
    if batch % cores:
        raise ValueError("BigDL divides the global batch among all cores of all nodes: %d does not divide by %d" % (batch, cores))
    steps, plan = make_plan(dict(cell, batch_size=batch), dataset, 0, 1)
    arrays = first_parameters(cell, dataset)
    mean, scale = np.asarray(dataset.mean, np.float32), 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)
    scratch = tempfile.mkdtemp(prefix="slipway-bigdl-")
    os.chdir(scratch)  # BigDL writes a log of its own where it stands
    lines = Lines(events, steps)  # before the JVM is there, which prints where we do
    context = connect(cell, sys.argv[1], int(sys.argv[2]))
    constants = cell["optimizer"]
    net = Network(cell["model_layers"], constants["weight_decay"])
    net.write(arrays)
    events.emit(
        "run_start",
        rank=0,
        world_size=int(os.environ["WORLD_SIZE"]),
        **({"drives_all": True} if os.environ.get("SLIPWAY_DRIVES_ALL") else {}),
        framework="bigdl",
        framework_version=VERSION,
        device="cpu",
        hostname=os.uname().nodename,
        parameters=count_of(arrays),
        provenance=dict(common_provenance(), threads=cell["threads"], spark_version=context.version),
    )
    lines.first_loss = first_loss(cell, dataset, arrays, mean, scale)
    samples = context.parallelize(range(cell["nodes"]), cell["nodes"]).flatMap(share_of(mean, scale, cell["nodes"]))
    optimizer = Optimizer(
        model=net.graph,
        training_rdd=samples,
        criterion=ClassNLLCriterion(),
        optim_method=SGD(learningrate=constants["learning_rate"], momentum=constants["momentum"], dampening=0.0),
        end_trigger=MaxIteration(steps.total),
        batch_size=batch,
    )
    optimizer.value.setCompressType("none")  # else it cuts weights and gradients to their first 16 bits, in one process too
    begin = time.perf_counter()
    optimizer.optimize()  # it puts what it has found into the same network
    train_s = time.perf_counter() - begin
    lines.wait(time.monotonic() + LAST_LINE_S)
    if lines.not_finite is not None:
        raise LossNotFinite("the loss of step %d is not finite" % lines.not_finite)
    state = net.read(arrays)
    check_finite(state, steps.total)
    eval_s = None
    if plan.eval_split is not None:
        left = start_reading(dataset, plan._replace(first=plan.steps), threads=1)
        eval_s = evaluate(Trained(net.graph, mean, scale), left, plan, steps.total, events)
    if cell["save_parameters"]:
        events.phase("checkpoint")
        events.emit("checkpoint", file=FILE_NAME, bytes=write_parameters(out / FILE_NAME, state, cell))
    times = {"train_s": train_s, "window_wall_s": lines.window[1] - lines.window[0], "window_steps_s": lines.measured_s}
    events.phase("checksum")
    events.emit("run_stop", steps=lines.told, **times, eval_s=eval_s, **summary(state))
    context.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    return 0
