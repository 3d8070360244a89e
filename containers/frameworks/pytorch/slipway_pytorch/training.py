"""The run itself, from start to end: read it from `run` downwards."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import slipway_reader
import torch
import torch.distributed as dist

from . import checkpoint, compiler
from .checkpoint import CheckpointWanted, Request, State, find_checkpoint, load_checkpoint, save_checkpoint
from .clock import Finished, Issued, make_clock
from .communication import join_group, leave_group
from .evaluation import evaluate
from .events import Events
from .failures import LossNotFinite
from .feed import Batches, loader_processes, start_reading
from .network import Network, count_parameters
from .parameters import FILE_NAME, save_parameters
from .plan import Steps, make_plan
from .preparation import Cell, make_forward, make_network
from .provenance import collect
from .steps import Step, make_inference_step, make_training_step


def run(cell: Cell, data: Path, out: Path, events: Events) -> int:
    """Train or infer as `cell` says, from the dataset in `data`; events and, from rank 0, the parameters go to `out`. The exit code: 0, or
    43 where a checkpoint was wanted before the end."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    training = cell["mode"] == "train"
    torch.set_num_threads(cell["threads"])
    compiler.leave_out()
    dataset = slipway_reader.open_dataset(data)
    resumed = find_checkpoint(cell)
    steps, plan = make_plan(cell, dataset, rank, world_size, resumed.step if resumed else 0)
    # First of all, while there are no threads and little memory to copy: the loader processes are forked.
    workers = loader_processes(cell["device"], int(os.environ["LOCAL_WORLD_SIZE"]))
    batches = start_reading(dataset, plan, workers)

    device = join_group(cell)
    net = make_network(cell, dataset, device)
    events.emit(
        "run_start",
        rank=rank,
        world_size=world_size,
        framework="pytorch",
        framework_version=torch.__version__,
        device=str(device),
        hostname=os.uname().nodename,
        parameters=count_parameters(net),
        provenance=collect(device, workers),
    )
    step, state = (make_training_step if training else make_inference_step)(cell, dataset, net, device)
    if resumed is not None:
        resume(cell, resumed, state, events)
    request = Request(rank)
    eval_s = None
    try:
        times = run_steps(steps, step, batches, (device, events, request))
        if plan.eval_split is not None:
            rest = request.watch(batches, steps.total)
            eval_s = evaluate(net, make_forward(cell, dataset, net, device), rest, plan.eval_split, device, events)
    except CheckpointWanted as wanted:
        events.phase("checkpoint")
        num_bytes = save_checkpoint(out, cell, state, wanted.step)
        events.emit("checkpoint", file=checkpoint.FILE_NAME, bytes=num_bytes, step=wanted.step, resumable=True)
        return checkpoint.EXIT_CODE
    if rank == 0 and training and cell["save_parameters"]:
        events.phase("checkpoint")
        num_bytes = save_parameters(out / FILE_NAME, net.named_state(), {"model": cell["model"], "variant": cell["model_variant"]})
        events.emit("checkpoint", file=FILE_NAME, bytes=num_bytes)
    events.emit("run_stop", steps=steps.total, **times, eval_s=eval_s, **summary(net, device))
    leave_group(device)
    return 0


def resume(cell: Cell, resumed: checkpoint.Resumed, state: State, events: Events) -> None:
    """Take the state from the checkpoint, and say what of it could not be carried."""
    load_checkpoint(resumed.path, state)
    lost = checkpoint.not_carried(cell)
    if lost is not None:
        events.emit("warning", message=f"resumed at step {resumed.step}: {lost}")


def run_steps(steps: Steps, step: Step, batches: Batches, around: tuple[torch.device, Events, Request]) -> dict[str, float]:
    """All steps that are left, an event each. The time of a step covers waiting for its batch, and its loss exists at its end.

    Returns train_s, and for the measured window its wall time and the sum of its steps: they must agree, or the clock is wrong. Raises
    CheckpointWanted between two steps, the first one finished.
    """
    device, events, request = around
    clock = make_clock(device, steps.total)
    measured_s = 0.0

    def report(finished: Sequence[Finished]) -> None:
        nonlocal measured_s
        for (number, input_s, samples, _), seconds, exchange_s, loss in finished:
            if not math.isfinite(loss):
                raise LossNotFinite(f"the loss of step {number} is {loss}")
            measured = steps.first_measured <= number < steps.end_measured
            measured_s += seconds if measured else 0.0
            times: dict[str, Any] = {"seconds": seconds, "input_s": input_s, "samples": samples}
            if exchange_s is not None:
                times["exchange_s"] = exchange_s
            events.emit("step", step=number, measured=measured, **times, loss=loss, loss_scope="local")

    start = time.perf_counter()
    marks = {steps.first: start}
    if steps.first_measured > steps.first:
        events.phase("warmup")
    clock.begin()
    for number in range(steps.first, steps.total):
        if request.is_there():
            report(clock.drain())
            raise CheckpointWanted(number)
        if number in (steps.first_measured, steps.end_measured):
            report(clock.drain())
            if number == steps.first_measured:
                dist.barrier()  # all ranks begin the window together
                events.phase("train")
            marks[number] = time.perf_counter()
            clock.begin()
        before = time.perf_counter()
        images, labels = next(batches)
        input_s = time.perf_counter() - before
        loss, waits = step(number, images, labels)
        report(clock.end(Issued(number, input_s, len(labels), waits), loss))
    report(clock.drain())
    end = time.perf_counter()
    window_s = marks.get(steps.end_measured, end) - marks.get(steps.first_measured, end)
    return {"train_s": end - start, "window_wall_s": window_s, "window_steps_s": measured_s}


def summary(net: Network, device: torch.device) -> dict[str, Any]:
    """Parameter count and norm, and the most memory this rank had: on a GPU what the allocator gave out, on the CPU the resident set."""
    if device.type == "cuda":
        memory, source = torch.cuda.max_memory_allocated(device), "cuda_allocator"
    else:
        memory, source = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "resident_set"
    norms = [torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64) for parameter in net.parameters()]
    return {
        "parameters": count_parameters(net),
        "norm": torch.linalg.vector_norm(torch.stack(norms)).item(),
        "max_memory_allocated_bytes": memory,
        "memory_source": source,
    }
