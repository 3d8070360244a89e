"""Plain loops of PyTorch on a GPU, without a line of Slipway: the rates that its runs of benchmarks/gpu.yaml are compared with.

    python benchmarks/gpu_by_hand.py

Needs torch and torchvision, whose ResNet-50 has the layers of ours. Each batch is copied to the GPU as Slipway's program does it; it comes
from memory, and there is no DistributedDataParallel. A line of JSON for each configuration.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import nn

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def lenet() -> nn.Module:
    """Caffe's, for one channel of 32 x 32."""
    convolutions = (nn.Conv2d(1, 20, 5), nn.MaxPool2d(2, 2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2, 2))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1250, 500), nn.ReLU(), nn.Linear(500, 10))


def resnet50() -> nn.Module:
    """For 100 classes."""
    import torchvision

    return torchvision.models.resnet50(num_classes=100)


def batches(size: int, shape: tuple[int, int, int], classes: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """On the GPU, of four that lie in memory, by way of pinned memory."""
    images = [torch.randint(0, 256, (size, *shape), dtype=torch.uint8) for _ in range(4)]
    labels = [torch.randint(0, classes, (size,)) for _ in range(4)]
    for number in count():
        one, other = images[number % 4].pin_memory(), labels[number % 4].pin_memory()
        yield one.to("cuda", non_blocking=True), other.to("cuda", non_blocking=True)


def step_of(net: nn.Module, precision: str, *, layout: torch.memory_format, infer: bool) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """One step of training, or of inference."""
    scaled, half = precision == "fp16", HALF.get(precision)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=scaled or None)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    net.train(not infer)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        pixels = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=layout).sub_(128.0).mul_(1 / 64)
        with torch.set_grad_enabled(not infer):
            with torch.autocast("cuda", half, enabled=half is not None):
                scores = net(pixels)
            loss = nn.functional.cross_entropy(scores.float(), labels)
        if not infer:
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


def measure(make: Callable[[], nn.Module], precision: str, layout: str = "nchw", *, batch: int, steps: int, infer: bool = False) -> None:
    """Print the rate of one configuration, by the wall clock, the GPU waited for at both ends."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    shape, classes = ((32, 32, 1), 10) if make is lenet else ((224, 224, 3), 100)
    step = step_of(make().to("cuda", memory_format=memory), precision, layout=memory, infer=infer)
    feed = batches(batch, shape, classes)
    for _ in range(20):
        step(*next(feed))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step(*next(feed))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    told = {"network": make.__name__, "precision": precision, "layout": layout, "batch": batch, "infer": infer}
    sys.stdout.write(json.dumps({**told, "samples_per_s": batch * steps / seconds, "ms": 1e3 * seconds / steps}) + "\n")


def main() -> None:
    """All of them."""
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        measure(resnet50, precision, batch=128, steps=40)
        measure(lenet, precision, batch=256, steps=400)
    measure(resnet50, "bf16", "nhwc", batch=256, steps=40)
    measure(resnet50, "bf16", "nhwc", batch=256, steps=40, infer=True)


if __name__ == "__main__":
    main()
