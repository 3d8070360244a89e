"""Train or infer in one rank: data, network, steps, checkpoints, events. Read it from `run` downwards."""

from __future__ import annotations

import os
import resource
from itertools import islice
from pathlib import Path
from typing import Any

import slipway_profile
import slipway_reader
import torch
import torch.distributed as dist
from slipway_events import EventFile
from slipway_program import checkpoint
from slipway_program.checkpoint import CheckpointRequested, Request, Resumed, find_checkpoint
from slipway_program.loop import Around, Evaluations, run_steps
from slipway_program.parameters import FILE_NAME, Cell, Facts, checksum_of, write_parameters
from slipway_program.plan import Steps, make_plan
from slipway_program.provenance import common_provenance
from slipway_program.torch_group import join_group, leave_group, provenance_of

from .checkpoint import State, gathered, give_parts, load_checkpoint, not_saved, save_checkpoint, whole
from .clock import make_clock
from .feed import computing_threads, from_memory, loader_processes, start_reading
from .network import Network, count_parameters
from .steps import evaluate, make_forward, make_inference_step, make_network, make_training_step


def run(cell: Cell, data: Path, out: Path, events: EventFile) -> int:
    """Run the training or the inference that `cell` describes, from the dataset in `data`; events and, from rank 0, the parameters go to
    `out`. The exit code: 0, or 43 where a checkpoint was wanted before the end."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    training = cell["mode"] == "train"
    dataset = slipway_reader.open_dataset(data, cell.get("crop_size"))
    resumed = find_checkpoint(cell)
    steps, plan = make_plan(cell, dataset, rank, world_size, resumed.step if resumed else 0)
    # First of all, while there are no threads and little memory to copy: the loader processes are forked.
    local_size = int(os.environ["LOCAL_WORLD_SIZE"])
    workers = loader_processes(cell["device"], local_size)
    torch.set_num_threads(computing_threads(cell["device"], cell["threads"], local_size, workers))
    batches = from_memory(dataset, plan) if cell.get("reader") == "memory" else start_reading(dataset, plan, workers)

    slipway_profile.log_nccl(cell, str(out), rank)
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
        provenance={**common_provenance(), **provenance_of(device), "threads": torch.get_num_threads(), "loader_processes": workers},
    )
    step, state = (make_training_step if training else make_inference_step)(cell, dataset, net, device)
    if resumed is not None:
        resume(cell, resumed, state, events)
    sharded = cell["strategy"] == "fsdp2"
    request = Request(rank)
    if sharded:
        from .sharding import SharedRequest, as_many_for_all

        request = SharedRequest(rank, device)
    eval_s: list[float] = []

    def evaluate_at(number: int) -> None:
        rest = as_many_for_all(batches, plan, dataset) if sharded else islice(batches, plan.batches - plan.steps)
        eval_s.append(evaluate(net, make_forward(cell, dataset, net, device), request.watch(rest, number), plan, number, events))

    try:
        clock = make_clock(device, steps.total)
        follow_profile(cell, net, steps, clock, out)
        around = Around(clock=clock, barrier=dist.barrier, events=events, request=request)
        times = run_steps(steps, step, batches, around, Evaluations(plan.evaluated_before, evaluate_at))
        if plan.eval_split is not None:
            evaluate_at(steps.total)
    except CheckpointRequested as wanted:
        events.phase("checkpoint")
        if rank > 0:
            give_parts(state)
            dist.barrier()  # where it is ended
        num_bytes = save_checkpoint(out, cell, state, wanted.step)
        events.emit("checkpoint", file=checkpoint.FILE_NAME, bytes=num_bytes, step=wanted.step, resumable=True)
        return checkpoint.EXIT_CODE
    if training and cell["save_parameters"] and (rank == 0 or sharded):
        arrays = gathered(net.named_state().items(), keep=rank == 0)
    if rank == 0 and training and cell["save_parameters"]:
        events.phase("checkpoint")
        num_bytes = write_parameters(out / FILE_NAME, arrays, cell)
        events.emit("checkpoint", file=FILE_NAME, bytes=num_bytes)
    events.phase("checksum")
    events.emit("run_stop", steps=steps.total, **times, eval_s=sum(eval_s) or None, **summary(net, device))
    if training and cell["strategy"] == "horovod":
        from .horovod_exchange import leave

        leave()
    leave_group(device)
    return 0


def follow_profile(cell: Cell, net: Network, steps: Steps, clock: Any, out: Path) -> None:
    """Let a profile run trace and log its steps, as `clock` begins and ends them."""
    if cell.get("profile") is not None:
        traced = steps.first_measured, steps.end_measured
        slipway_profile.Profiler(torch, net, cell, str(out), int(os.environ["RANK"]), traced).follow(clock, steps.first)


def resume(cell: Cell, resumed: Resumed, state: State, events: EventFile) -> None:
    """Take the state from the checkpoint, and say what of it could not be carried."""
    load_checkpoint(resumed.path, state)
    lost = not_saved(cell)
    if lost is not None:
        events.emit("warning", message=f"resumed at step {resumed.step}: {lost}")


def summary(net: Network, device: torch.device) -> Facts:
    """Return count, norm and checksum of the parameters, and the most memory this rank had: on a GPU what the allocator gave out, on the
    CPU the resident set. Of parameters in parts each rank asks for the others', one parameter at a time: the checksum is of the whole ones.
    """
    if device.type == "cuda":
        memory, source = torch.cuda.max_memory_allocated(device), "cuda_allocator"
    else:
        memory, source = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "resident_set"
    norms = [whole(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64)) for parameter in net.parameters()]
    return {
        "parameters": count_parameters(net),
        "norm": torch.linalg.vector_norm(torch.stack(norms)).item(),
        "checksum": checksum_of(net.named_state(), lambda tensor: whole(tensor).cpu().numpy()),
        "max_memory_allocated_bytes": memory,
        "memory_source": source,
    }
