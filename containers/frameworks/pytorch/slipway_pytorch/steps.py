"""The network on its device, how samples get there, and one step of training, of inference and of an evaluation."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import slipway_parts
import slipway_reader
import torch
import torch.distributed as dist
from slipway_events import EventFile
from slipway_program.evaluation import report
from slipway_program.loop import Moments
from slipway_program.parameters import Cell, Layer, Optimizer, given_parameters, read_parameters
from slipway_program.plan import Plan, check_fits
from slipway_program.trainer import dropout_seed
from slipway_reader.torch import to_device
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from .checkpoint import MOMENTUM, State
from .clock import make_laps
from .feed import Batches
from .network import Network, count_parameters

Forward = Callable[[torch.Tensor], torch.Tensor]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_network(cell: Cell, dataset: Any, device: torch.device) -> Network:
    """Make the network of the cell on `device`, checked against dataset and parameter count; weights by seed or from a file."""
    layers: Sequence[Layer] = cell["model_layers"]
    check_fits(layers, dataset)
    net = Network(layers, cell["seed"])
    if count_parameters(net) != cell["model_parameters"]:
        raise ValueError(f"{cell['model']} has {count_parameters(net)} parameters here and {cell['model_parameters']} in the cell")
    if (given := given_parameters()) is not None:
        net.load_named(read_parameters(given, {name: value.shape for name, value in net.named_state().items()}))
    if cell["strategy"] == "fsdp2":  # goes to the device in parts, whose weights lie in memory one way only
        return net
    return net.to(device, memory_format=memory_format(cell))


def memory_format(cell: Cell) -> torch.memory_format:
    """Return how activations and convolution weights lie in memory."""
    return torch.channels_last if cell["layout"] == "nhwc" else torch.contiguous_format


def make_forward(cell: Cell, dataset: Any, module: torch.nn.Module, device: torch.device) -> Forward:
    """Return the function of uint8 pixels [batch, height, width, channels], on the device, -> outputs [batch, classes] of `module`, in the
    cell's precision and layout. Pixels get mean 0 and deviation 1 over the training split. Or token ids [batch, tokens] -> [batch, tokens,
    vocabulary].
    """
    dtype = AUTOCAST.get(cell["precision"])

    def computed(inputs: torch.Tensor) -> torch.Tensor:
        with contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype):
            outputs: torch.Tensor = module(inputs)
        return outputs.float()

    if isinstance(dataset, slipway_reader.Sequences):
        return computed
    mean = torch.tensor(dataset.mean, dtype=torch.float32, device=device).view(-1, 1, 1)
    scale = 1 / torch.tensor(dataset.std, dtype=torch.float32, device=device).clamp(min=1).view(-1, 1, 1)
    layout = memory_format(cell)
    input_gradient = cell.get("input_gradient", False)  # which nobody reads; evaluation computes no gradient in any case

    def forward(images: torch.Tensor) -> torch.Tensor:
        pixels = images.permute(0, 3, 1, 2)
        inputs = pixels.to(torch.float32, memory_format=layout).sub_(mean).mul_(scale)
        return computed(inputs.requires_grad_() if input_gradient else inputs)

    return forward


def make_dropout_seeder(seed: int, net: Network, device: torch.device) -> Callable[[int], object]:
    """Return a function that seeds dropout for a step by seed, rank and step number, so that a resumed run drops the same; it takes 1
    us."""
    if not any(isinstance(module, torch.nn.Dropout) for module in net.modules()):
        return lambda _: None
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    rank = int(os.environ["RANK"])
    return lambda number: generator.manual_seed(dropout_seed(seed, rank, number))


NO_TARGET = -1


def mean_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean of all samples alike. The loss of a sequence is the mean over its tokens, so that what a global batch trains is the
    same however many ranks share it, and whichever of its sequences are short.
    """
    if labels.dim() == 1:
        return cross_entropy(outputs, labels)
    return (_of_tokens(outputs, labels).sum(1) / (labels != NO_TARGET).sum(1)).mean()


def totals(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum of losses, how many are right, how many there are, of images or of tokens; and how many samples. What has a negative
    label is none.
    """
    counted = labels >= 0
    right = (outputs.argmax(-1) == labels).sum()
    losses = cross_entropy(outputs, labels, reduction="sum") if labels.dim() == 1 else _of_tokens(outputs, labels).sum()
    samples = counted.sum() if labels.dim() == 1 else counted.any(1).sum()
    return torch.stack([losses.double(), right.double(), counted.sum().double(), samples.double()])


def _of_tokens(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token, [batch, tokens]; 0 where there is no target."""
    return cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=NO_TARGET, reduction="none").view_as(labels)


def evaluate(net: torch.nn.Module, forward: Forward, batches: Batches, plan: Plan, step: int, events: EventFile) -> float:
    """Compute mean loss and accuracy over all samples of the split, or all their tokens, each read by one rank; rank 0 writes the event.
    Returns seconds.
    """
    events.phase("eval")
    start, device = time.perf_counter(), next(net.parameters()).device
    for buffer in net.buffers():  # running statistics differ between ranks; what is saved are those of rank 0
        dist.broadcast(buffer, 0)
    trained = net.training
    net.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels_read in batches:
            sums += totals(forward(to_device(images, device)), to_device(labels_read, device).long())
            events.phase("eval")  # a sign of life
    dist.all_reduce(sums)
    net.train(trained)
    return report(events, plan, step, sums.tolist(), start)


POWERSGD_FIRST_STEP = 2  # the earliest that keeps its error feedback; the steps before it exchange whole gradients
ONE_BUCKET_MB = 1 << 20
NEVER = 1 << 30
EXCHANGE = "c10d::comm_hook"
"""The range of a hook in the trace of a profile run. The report takes what begins with `c10d::` for communication."""


def distribute(
    net: torch.nn.Module,
    comm_hook: str,
    device: torch.device,
    *,
    same_strides: bool = False,
    bucket_cap_mb: int | None = None,
    traced: bool = False,
) -> DistributedDataParallel:
    """Return the network with gradients averaged over the ranks, compressed on the way as `comm_hook` says, or with `noop` left as they
    are; else PyTorch's defaults, for the size of buckets too where it is None.

    `same_strides`: gradients lie in memory exactly as their parameters do. Else they may differ in dimensions of size 1, such as those of
    a convolution of 1 x 1, which the fused optimizer refuses on a GPU. `traced`: what a hook computes gets a range of its own.

    On gloo PowerSGD gets one bucket: its exchanges are started from callbacks, and with several buckets their order differs between ranks,
    which ends in a mismatch of sizes.
    """
    one_bucket = comm_hook == "powersgd" and device.type == "cpu"
    ddp = DistributedDataParallel(
        net,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=ONE_BUCKET_MB if one_bucket else bucket_cap_mb,
        gradient_as_bucket_view=same_strides,
    )
    if comm_hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=POWERSGD_FIRST_STEP)
        ddp.register_comm_hook(state, _as_hook(powerSGD_hook.powerSGD_hook, traced))
    elif comm_hook == "onebit":
        from .onebit import OneBit

        ddp.register_comm_hook(OneBit(dist.get_world_size()), _as_hook(OneBit.exchange, traced))
    elif comm_hook == "noop":
        from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks

        ddp.register_comm_hook(None, debugging_hooks.noop_hook)
    elif comm_hook != "none":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        compress = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[comm_hook]
        ddp.register_comm_hook(None, _as_hook(compress, traced))
    # Else PyTorch waits for the timers of the step before, every hundredth step; in its first ten steps it does in any case.
    ddp._set_ddp_runtime_logging_sample_rate(NEVER)
    return ddp


def _as_hook(compute: Callable[[Any, Any], Any], traced: bool) -> Callable[[Any, Any], Any]:
    """Return a function as a hook. Where it is traced it has a range around it, so that the trace counts what it computes as communication,
    and not as backward of a layer; a range that nobody reads would take some microseconds of each bucket all the same."""

    def in_range(state: Any, bucket: Any) -> Any:
        with torch.profiler.record_function(EXCHANGE):
            return compute(state, bucket)

    call = in_range if traced else compute
    # By name PyTorch refuses bf16 on gloo, which has learnt it since; the parameter must be called bucket, and have no annotation.
    return lambda state, bucket: call(state, bucket)


Step = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, Moments]]
"""(number, images or token ids, labels or targets) -> the loss of this rank, and the moments of the parts of the step."""


def make_training_step(cell: Cell, dataset: Any, net: Network, device: torch.device) -> tuple[Step, State]:
    """Return the step: forward, backward with the exchange of gradients, update. World size 1 takes the same way."""
    scaled = cell["precision"] == "fp16"
    laps = make_laps(device)
    if cell["strategy"] == "fsdp2":
        from .sharding import shard

        shard(net, device)
        forward = make_forward(cell, dataset, net, device)
    elif cell["strategy"] == "horovod":
        forward = make_forward(cell, dataset, net, device)
    else:
        traced, size = cell.get("profile") is not None, cell.get("bucket_cap_mb")
        ddp = distribute(net, cell["comm_hook"], device, same_strides=scaled, bucket_cap_mb=size, traced=traced)
        forward = make_forward(cell, dataset, ddp, device)
        slipway_parts.part_exchange(ddp, laps.end)
    optimizer = make_optimizer(cell["optimizer"], net, scaled=scaled)
    if cell["strategy"] == "horovod":
        from .horovod_exchange import averaging

        optimizer = averaging(optimizer, net)
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)
    net.train()
    limit = cell["optimizer"].get("clip_norm")
    seed_dropout = make_dropout_seeder(cell["seed"], net, device)

    # Where parameters lie in parts, forward and backward wait for them; Horovod waits for the averages before the update.
    sharded, late = cell["strategy"] == "fsdp2", cell["strategy"] == "horovod"

    def step(number: int, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Moments]:
        seed_dropout(number)
        laps.begin()
        optimizer.zero_grad()  # gives the memory of the gradients back, a tenth of a millisecond and more
        laps.end("" if late else "optimizer")
        inputs, targets = to_device(images, device), to_device(labels, device)
        laps.end("copy")
        loss = mean_loss(forward(inputs), targets.long())
        laps.end("" if sharded else "forward")
        scaler.scale(loss).backward()
        laps.end("backward") if late else laps.end_backward()
        if limit is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), limit)
        scaler.step(optimizer)
        scaler.update()
        laps.end("" if late else "optimizer")
        return loss.detach(), laps.take()

    return step, State(net, optimizer, scaler)


def make_optimizer(constants: Optimizer, net: Network, *, scaled: bool) -> torch.optim.Optimizer:
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

    laps = make_laps(device)

    def step(_: int, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Moments]:
        laps.begin()
        inputs, targets = to_device(images, device), to_device(labels, device)
        laps.end("copy")
        with torch.no_grad():
            loss = mean_loss(forward(inputs), targets.long())
        laps.end("forward")
        return loss, laps.take()

    return step, State(net)
