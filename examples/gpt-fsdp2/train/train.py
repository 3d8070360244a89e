"""A small GPT with PyTorch's FSDP2, trained to predict the next byte of a file. By hand: torchrun --nproc-per-node 2 train.py"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import slipway_events
import torch
import torch.distributed as dist
from model import GPT
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

CHECKPOINT = "checkpoint.safetensors"
STOPPED = 43
"""The exit code that says that a checkpoint was wanted and is there."""


def batches(tokens: torch.Tensor, options: argparse.Namespace, first: int, last: int) -> Iterator[torch.Tensor]:
    """Of step k the same sequences for every number of processes: each takes its part of the global batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(first, last):
        chance = torch.Generator().manual_seed(options.seed + step)
        starts = torch.randint(len(tokens) - options.seq_len, (options.batch_size * world,), generator=chance)
        own = starts[rank * options.batch_size : (rank + 1) * options.batch_size]
        yield torch.stack([tokens[start : start + options.seq_len + 1] for start in own]).long()


def save(file: str, step: int, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All ranks gather what is spread over them, the optimizer's numbers too, and rank 0 writes it, whole or not at all."""
    tensors = {"step": torch.tensor(step)}
    for name, parameter in net.named_parameters():
        for kind, part in {"parameter": parameter.detach(), **optimizer.state[parameter]}.items():
            whole = part.full_tensor() if isinstance(part, DTensor) else part
            if dist.get_rank() == 0:
                tensors[f"{kind}.{name}"] = whole.cpu().contiguous()
    if dist.get_rank() == 0:
        save_file(tensors, f".{file}.part")
        with open(f".{file}.part", "rb") as written:
            os.fsync(written.fileno())
        os.rename(f".{file}.part", file)


def load(file: str, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Every rank reads the file and takes its part. The step to go on at."""
    found = load_file(file)
    for name, parameter in net.named_parameters():
        mesh, places = parameter.device_mesh, parameter.placements
        parts = {kind: found[f"{kind}.{name}"] for kind in ("parameter", "exp_avg", "exp_avg_sq")}
        own = {kind: distribute_tensor(part.to(mesh.device_type), mesh, places) for kind, part in parts.items()}
        parameter.detach().copy_(own.pop("parameter"))
        optimizer.state[parameter] = {"step": found[f"step.{name}"], **own}
    return int(found["step"])


def asked_to_stop(run: slipway_events.Run, group: dist.ProcessGroup) -> bool:
    """Rank 0 is asked, and all do as it says, since a checkpoint is gathered from all. On the CPU: the GPU's work goes on meanwhile."""
    wanted = torch.tensor(run.checkpoint_wanted)
    dist.broadcast(wanted, 0, group=group)
    return bool(wanted)


def spread(net: GPT, mesh: DeviceMesh, precision: str) -> None:
    """Each layer's parameters over all ranks: FSDP gathers them when the layer computes, and frees them after it."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = half if precision == "bf16" else MixedPrecisionPolicy()
    for layer in net.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default=__file__, help="any file: its bytes are the tokens")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences of a process and step")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100, help="by hand; in a run the study says how many")
    parser.add_argument("--ask-every", type=int, default=10, help="steps between two looks whether a checkpoint is wanted")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    by_cpu = dist.new_group(backend="gloo")

    torch.manual_seed(options.seed)
    net = GPT(options.layers, options.width, max(1, options.width // 32), options.seq_len).to(kind)
    parameters, flop = sum(parameter.numel() for parameter in net.parameters()), net.flop_per_token()
    spread(net, mesh, options.precision)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    run = slipway_events.start(model=net, parameters=parameters, flop_per_unit=flop, precision=options.precision)
    if run.resume_from:
        run.resume(load(run.resume_from, net, optimizer))
    tokens = torch.frombuffer(bytearray(Path(options.tokens).read_bytes()), dtype=torch.uint8)
    last = sys.maxsize if run.active else options.steps
    first = run.step
    for sequences in run.steps(batches(tokens, options, first, last), samples=len, tokens=lambda batch: batch[:, 1:].numel()):
        if run.step > first and run.step % options.ask_every == 0 and asked_to_stop(run, by_cpu):
            save(CHECKPOINT, run.step, net, optimizer)
            if run.rank == 0:
                run.checkpoint(CHECKPOINT, run.step)
                sys.exit(STOPPED)
            dist.barrier(group=by_cpu)  # where it is ended
        loss = net(sequences.to(kind))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.loss(loss)
    save("trained.safetensors", run.step, net, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
