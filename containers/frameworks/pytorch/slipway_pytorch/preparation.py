"""What a run needs before its first step: the network on its device, and how images get there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import slipway_reader
import torch
from slipway_program.parameters import given_parameters, read_parameters
from slipway_program.plan import check_fits
from slipway_program.trainer import dropout_seed

from .feed import to_device
from .network import Network, count_parameters

Cell = Mapping[str, Any]
Forward = Callable[[torch.Tensor], torch.Tensor]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_network(cell: Cell, dataset: Any, device: torch.device) -> Network:
    """Make the network of the cell on `device`, checked against dataset and parameter count; weights by seed or from a file."""
    layers: Sequence[Mapping[str, Any]] = cell["model_layers"]
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
    """Return the function of uint8 pixels [batch, height, width, channels] -> outputs [batch, classes] of `module`, in the cell's precision
    and layout. Pixels get mean 0 and deviation 1 over the training split, on the device. Or token ids [batch, tokens] -> [batch, tokens,
    vocabulary].
    """
    dtype = AUTOCAST.get(cell["precision"])

    def computed(inputs: torch.Tensor) -> torch.Tensor:
        with contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype):
            outputs: torch.Tensor = module(inputs)
        return outputs.float()

    if isinstance(dataset, slipway_reader.Sequences):
        return lambda tokens: computed(to_device(tokens, device))
    mean = torch.tensor(dataset.mean, dtype=torch.float32, device=device).view(-1, 1, 1)
    scale = 1 / torch.tensor(dataset.std, dtype=torch.float32, device=device).clamp(min=1).view(-1, 1, 1)
    layout = memory_format(cell)

    def forward(images: torch.Tensor) -> torch.Tensor:
        pixels = to_device(images, device).permute(0, 3, 1, 2)
        return computed(pixels.to(torch.float32, memory_format=layout).sub_(mean).mul_(scale))

    return forward


def make_dice(seed: int, net: Network, device: torch.device) -> Callable[[int], object]:
    """What dropout drops in step k is a function of seed, rank and k: a resumed run drops the same. One microsecond; nothing without it."""
    if not any(isinstance(module, torch.nn.Dropout) for module in net.modules()):
        return lambda _: None
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    rank = int(os.environ["RANK"])
    return lambda number: generator.manual_seed(dropout_seed(seed, rank, number))
