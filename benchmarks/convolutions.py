"""Each convolution of a network alone, forward and backward.

    python -m benchmarks.convolutions [--model alexnet] [--batch 16] [--device cpu|cuda] [--dtype float32|bfloat16|float16]
        [--layout nchw|nhwc] [--cudnn-benchmark] [--threads N] [--seconds 1]

torch.utils.benchmark times blocks of calls: forward with gradients on; backward is forward and backward less forward. Of the first layer
both are printed, without and with the gradient of the images. IQR: of the blocks of forward, and of forward and backward. Algorithm: of
oneDNN by its own log on a CPU, as far as its names tell; on a GPU `slipway profile --trace` tells it. Where others work on the cores
meanwhile, the IQR tells how little a figure is worth.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch.utils.benchmark import Measurement, Timer

from containers.lib.slipway_profile import OneDnnLog
from containers.models.convolutions import Convolution, convolutions_of
from containers.models.facts import usual
from workflow.report.profile.profile import algorithm_of
from workflow.report.profile.runs import implementations


def main() -> None:
    """Print a row per convolution, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, word in (("model", "alexnet"), ("device", "cpu"), ("dtype", "float32"), ("layout", "nchw")):
        parser.add_argument(f"--{name}", default=word)
    for name, count in (("batch", 16), ("threads", torch.get_num_threads())):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cudnn-benchmark", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    model = usual(options.model)
    if not convolutions_of(model.layers):
        parser.error(f"--model {model.name}: this network has no convolutions")
    cudnn = f", cuDNN {torch.backends.cudnn.version()}" if options.device == "cuda" else ""
    print(
        f"{model.name}, batch {options.batch}, {options.dtype} {options.layout}, {options.device}, {options.threads} threads, "
        f"torch {torch.__version__}{cudnn}, milliseconds"
    )
    print(f"{'layer':32}{'forward':>10}{'IQR':>8}{'backward':>10}{'IQR':>8}  algorithm")
    total_ms = 0.0
    for number, one in enumerate(convolutions_of(model.layers)):
        for input_gradient in (False, True) if number == 0 else (True,):
            forward, both = _timed(one, options, input_gradient)
            spent = (1e3 * forward.median, 1e3 * (both.median - forward.median))
            name = one.name + (", images too" if number == 0 and input_gradient else "")
            algorithm = _algorithm(one, options) if options.device == "cpu" else ""
            print(f"{name:32}{spent[0]:10.3f}{1e3 * forward.iqr:8.3f}{spent[1]:10.3f}{1e3 * both.iqr:8.3f}  {algorithm}")
            total_ms += 0.0 if number == 0 and input_gradient else sum(spent)
    print(f"sum {total_ms:.2f} ms")


def _tensors(one: Convolution, options: argparse.Namespace, input_gradient: bool) -> dict[str, Any]:
    layout = torch.channels_last if options.layout == "nhwc" else torch.contiguous_format
    shapes = {
        "x": (options.batch, one.channels_in, *one.size_in),
        "w": (one.channels_out, one.channels_in // one.groups, *one.kernel),
        "g": (options.batch, one.channels_out, *one.size_out),
    }
    dtype = getattr(torch, options.dtype)
    made = {name: torch.randn(shape, device=options.device, dtype=dtype).contiguous(memory_format=layout) for name, shape in shapes.items()}
    made["x"].requires_grad_(input_gradient)
    made["w"].requires_grad_()
    return made


def _timed(one: Convolution, options: argparse.Namespace, input_gradient: bool) -> tuple[Measurement, Measurement]:
    """Time forward, and forward with backward."""
    call = f"torch.nn.functional.conv2d(x, w, None, {one.stride}, {one.padding}, 1, {one.groups})"
    names = {"torch": torch, **_tensors(one, options, input_gradient)}
    forward, both = (
        Timer(statement, globals=names, num_threads=options.threads).blocked_autorange(min_run_time=options.seconds)
        for statement in (call, f"{call}.backward(g); x.grad = w.grad = None")
    )
    return forward, both


def _algorithm(one: Convolution, options: argparse.Namespace) -> str:
    """Return what oneDNN's log says of the forward pass, and the algorithm that this names, if it does."""
    names = _tensors(one, options, input_gradient=False)
    with tempfile.NamedTemporaryFile() as file:
        log = OneDnnLog(torch)
        torch.nn.functional.conv2d(names["x"], names["w"], None, one.stride, one.padding, 1, one.groups)
        log.write(file.name)
        passes = implementations(file.read())
    taken = next((kernel for directions in passes.values() for kernel in directions.values()), None)
    return f"{algorithm_of(taken) or ''} ({taken})" if taken else ""


if __name__ == "__main__":
    main()
