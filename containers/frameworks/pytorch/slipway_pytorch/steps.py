"""One step of training or inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from slipway_program.loop import Moments
from torch.nn.parallel import DistributedDataParallel

from .checkpoint import MOMENTUM, State
from .clock import Exchange, recorded_event
from .evaluation import mean_loss
from .feed import to_device
from .network import Network
from .preparation import Cell, make_dice, make_forward

POWERSGD_FIRST_STEP = 2  # the earliest that keeps its error feedback; the steps before it exchange whole gradients
ONE_BUCKET_MB = 1 << 20
NEVER = 1 << 30


def distribute(net: torch.nn.Module, comm_hook: str, device: torch.device, *, same_strides: bool = False) -> DistributedDataParallel:
    """Return the network with gradients averaged over the ranks, compressed on the way as `comm_hook` says; else PyTorch's defaults.

    `same_strides`: gradients lie in memory exactly as their parameters do. Else they may differ in dimensions of size 1, such as those of
    a convolution of 1 x 1, which the fused optimizer refuses on a GPU.

    On gloo PowerSGD gets one bucket: its exchanges are started from callbacks, and with several buckets their order differs between ranks,
    which ends in a mismatch of sizes.
    """
    one_bucket = comm_hook == "powersgd" and device.type == "cpu"
    ddp = DistributedDataParallel(
        net,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=ONE_BUCKET_MB if one_bucket else None,
        gradient_as_bucket_view=same_strides,
    )
    if comm_hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=POWERSGD_FIRST_STEP)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif comm_hook != "none":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        compress = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[comm_hook]
        # By name PyTorch refuses bf16 on gloo, which has learnt it since; the parameter must be called bucket.
        ddp.register_comm_hook(None, lambda state, bucket: compress(state, bucket))
    # Else PyTorch waits for the timers of the step before, every hundredth step; in its first ten steps it does in any case.
    ddp._set_ddp_runtime_logging_sample_rate(NEVER)
    return ddp


Step = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, Moments | None]]
"""(number, images or token ids, labels or targets) -> the loss of this rank, and when it waited for the others."""


def make_training_step(cell: Cell, dataset: Any, net: Network, device: torch.device) -> tuple[Step, State]:
    """Return the step: forward, backward with the exchange of gradients, update. World size 1 takes the same way."""
    scaled = cell["precision"] == "fp16"
    exchange = None
    if cell["strategy"] == "fsdp2":
        from .sharding import shard

        shard(net, device)
        forward = make_forward(cell, dataset, net, device)
    elif cell["strategy"] == "horovod":
        forward = make_forward(cell, dataset, net, device)
    else:
        ddp = distribute(net, cell["comm_hook"], device, same_strides=scaled)
        forward = make_forward(cell, dataset, ddp, device)
        exchange = Exchange(ddp, recorded_event) if device.type == "cuda" else Exchange(ddp)
    optimizer = make_optimizer(cell["optimizer"], net, scaled=scaled)
    if cell["strategy"] == "horovod":
        from .horovod_exchange import averaging

        optimizer = averaging(optimizer, net)
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)
    net.train()
    limit = cell["optimizer"].get("clip_norm")
    throw_dice = make_dice(cell["seed"], net, device)

    def step(number: int, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Moments | None]:
        throw_dice(number)
        optimizer.zero_grad()
        loss = mean_loss(forward(images), to_device(labels, device).long())
        scaler.scale(loss).backward()
        waits = None if exchange is None else exchange.end()
        if limit is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), waits

    return step, State(net, optimizer, scaler)


def make_optimizer(constants: Mapping[str, Any], net: Network, *, scaled: bool) -> torch.optim.Optimizer:
    """Return SGD (v = momentum v + gradient, weight -= rate v) or AdamW. Weight decay is of weights, not of biases and batch normalisation.

    `scaled`: behind a loss scaler. Then the fused form, which takes "a gradient was not finite" as a number on the device, where the other
    forms read it back in every step. Its momentum begins as zeros: a first step that is left out would leave it as it was allocated.
    """
    parameters = list(net.parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": constants["weight_decay"]},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    if constants["name"] == "adamw":
        betas = constants["beta1"], constants["beta2"]
        return torch.optim.AdamW(groups, lr=constants["learning_rate"], betas=betas, eps=constants["epsilon"], fused=scaled or None)
    optimizer = torch.optim.SGD(groups, lr=constants["learning_rate"], momentum=constants["momentum"], fused=scaled or None)
    if scaled and constants["momentum"]:
        for parameter in parameters:
            optimizer.state[parameter][MOMENTUM] = torch.zeros_like(parameter)
    return optimizer


def make_inference_step(cell: Cell, dataset: Any, net: Network, device: torch.device) -> tuple[Step, State]:
    """Return the step: forward only, ranks on their own."""
    forward = make_forward(cell, dataset, net, device)
    net.eval()

    def step(_: int, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Moments | None]:
        with torch.no_grad():
            return mean_loss(forward(images), to_device(labels, device).long()), None

    return step, State(net)
