"""A small classifier that reads a Slipway dataset with Slipway's loader for PyTorch, and resumes from its checkpoint at any sample.
By hand: torchrun --nproc-per-node 2 train.py --data DIRECTORY"""

import argparse
import os
import sys

import slipway_events
import slipway_reader
import torch
import torch.distributed as dist
from slipway_reader.torch import Loader
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = "checkpoint.safetensors"
"""The name of the one checkpoint that a run resumes from, whatever its format."""
STOPPED = 43
"""The exit code of a program that wrote the checkpoint that it was asked for."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dataset = slipway_reader.open_dataset(options.data)
    loader = Loader(dataset.split("train"), options.batch_size, augmentation="crop-flip", device=device, num_workers=options.workers)
    torch.manual_seed(0)
    height, width = dataset.size
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(height * width * dataset.channels, dataset.num_classes)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    run = slipway_events.start(model=model, parameters=sum(parameter.numel() for parameter in net.parameters()))
    if run.resume_from:
        with open(run.resume_from, "rb") as file:  # by its name alone, PyTorch would take it for safetensors
            state = torch.load(file, map_location=device)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        run.resume(state["step"])
    for epoch in run.epochs(options.epochs, first=loader.epoch):
        loader.set_epoch(epoch)
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            inputs = images.permute(0, 3, 1, 2).float() / 255
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            run.loss(loss)
            if run.checkpoint_wanted:  # on rank 0; the other ranks wait in their next all-reduce, and are ended there
                step = run.step + 1
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "step": step}
                torch.save(state, CHECKPOINT)
                run.checkpoint(CHECKPOINT, step)
                sys.exit(STOPPED)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
