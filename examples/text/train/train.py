"""The next byte of text, from those before it. By hand: torchrun --nproc-per-node 2 train.py --data DIRECTORY"""

import argparse
import os
from pathlib import Path

import numpy as np
import slipway_events
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CONTEXT, LENGTH = 8, 128


def bytes_of(folder: Path) -> torch.Tensor:
    """All Markdown files below it in one row, in the order of their names: the same on every rank."""
    files = sorted(folder.rglob("*.md"))
    return torch.from_numpy(np.concatenate([np.fromfile(file, np.uint8) for file in files])).long()


class Batches:
    """Sequences of LENGTH bytes and the CONTEXT before them, each rank its own: 200 batches each time that they are gone through."""

    def __init__(self, text: torch.Tensor, count: int, rank: int, world: int) -> None:
        self.text, self.count, self.rank, self.world = text, count, rank, world
        self.random = torch.Generator().manual_seed(0)

    def __iter__(self):
        for _ in range(200):
            starts = torch.randint(len(self.text) - CONTEXT - LENGTH, (self.world, self.count), generator=self.random)[self.rank]
            yield torch.stack([self.text[start : start + CONTEXT + LENGTH] for start in starts.tolist()])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    text = bytes_of(options.data)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Embedding(256, options.width), torch.nn.Flatten(-2), torch.nn.Linear(CONTEXT * options.width, 256)
    ).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    run = slipway_events.start(model=model, parameters=sum(parameter.numel() for parameter in net.parameters()))
    loader = Batches(text, options.batch_size, dist.get_rank(), dist.get_world_size())
    for batch in run.steps(loader, samples=len, tokens=lambda batch: len(batch) * LENGTH):
        before = batch.unfold(1, CONTEXT, 1)[:, :-1].reshape(-1, CONTEXT).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(before), batch[:, CONTEXT:].reshape(-1).to(device))
        loss.backward()
        optimizer.step()
        run.loss(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
