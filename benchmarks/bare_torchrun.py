"""What one writes without Slipway: LeNet (Caffe's) under DistributedDataParallel, started by torchrun; step.py compares with it.

Arguments: dataset, samples of a batch per process, steps, threads, file for the times.
"""

import json
import sys
import time
from pathlib import Path

import slipway_reader
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

data, batch, steps, threads, out = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])


class Images(Dataset):
    def __init__(self):
        self.split = slipway_reader.open_dataset(data).split("train")

    def __getitem__(self, indices):
        return tuple(map(torch.from_numpy, self.split.read_many(indices)))


torch.set_num_threads(threads)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
images = Images()
order = [slipway_reader.grouped_batch(0, step, [len(images.split)], batch * world, rank, world) for step in range(steps)]
batches = iter(DataLoader(images, batch_size=None, sampler=order, num_workers=1, prefetch_factor=4))
hidden = 50 * ((((32 - 4) // 2) - 4) // 2) ** 2
net = nn.Sequential(
    *[nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)],
    *[nn.Flatten(), nn.Linear(hidden, 500), nn.ReLU(), nn.Linear(500, 10)],
)
for number, limit in ((0, (3 / 25) ** 0.5), (2, (3 / 500) ** 0.5), (5, (6 / hidden) ** 0.5), (7, (3 / 500) ** 0.5)):
    nn.init.uniform_(net[number].weight, -limit, limit)  # as ours: the time of a step depends on the numbers by a percent or two
    nn.init.zeros_(net[number].bias)
ddp = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001, momentum=0.9)
times = []
for _ in range(steps):
    start = time.perf_counter()
    pixels, labels = next(batches)
    optimizer.zero_grad()
    pixels = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    loss = nn.functional.cross_entropy(ddp(pixels.sub_(80).mul_(1 / 90)), labels)
    loss.backward()
    optimizer.step()
    loss.item()
    times.append(time.perf_counter() - start)
if rank == 0:
    out.write_text(json.dumps(times))
dist.destroy_process_group()
