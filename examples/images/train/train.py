"""A small classifier that reads a Slipway dataset with Slipway's loader for PyTorch, and begins at any sample of an epoch.
By hand: torchrun --nproc-per-node 2 train.py --data DIRECTORY"""

import argparse
import os

import slipway_events
import slipway_reader
import torch
import torch.distributed as dist
from slipway_reader.torch import Loader
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume-at", type=int, nargs=2, default=(0, 0), metavar=("EPOCH", "SAMPLE"), help="where the first batch begins")
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dataset = slipway_reader.open_dataset(options.data)
    loader = Loader(dataset.split("train"), options.batch_size, augmentation="crop-flip", device=device, num_workers=options.workers)
    loader.load_state_dict({"epoch": options.resume_at[0], "sample": options.resume_at[1]})
    torch.manual_seed(0)
    height, width = dataset.size
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(height * width * dataset.channels, dataset.num_classes)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    run = slipway_events.start(model=model, parameters=sum(parameter.numel() for parameter in net.parameters()))
    for epoch in run.epochs(options.epochs, first=loader.epoch):
        loader.set_epoch(epoch)
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            inputs = images.permute(0, 3, 1, 2).float() / 255
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            run.loss(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
