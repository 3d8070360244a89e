"""How gradients go through the process group."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

POWERSGD_FIRST_STEP = 2  # the earliest that keeps its error feedback; the steps before it exchange whole gradients
ONE_BUCKET_MB = 1 << 20
NEVER = 1 << 30


def distribute(net: torch.nn.Module, comm_hook: str, device: torch.device, *, same_strides: bool = False) -> DistributedDataParallel:
    """The network with gradients averaged over the ranks, compressed on the way as `comm_hook` says; else PyTorch's defaults.

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
