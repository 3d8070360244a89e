"""A small classifier trained with PyTorch's DistributedDataParallel. By hand: torchrun --nproc-per-node 2 train.py --data DIRECTORY"""

import argparse
import os

import slipway_events
import slipway_reader
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self, path: str) -> None:
        self.split = slipway_reader.open_dataset(path).split("train")

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int):
        image, label = self.split.read(index)
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255, label


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dataset = Images(options.data)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, options.batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    pixels = dataset[0][0].numel()
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(pixels, options.width), torch.nn.ReLU(), torch.nn.Linear(options.width, 10)
    ).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    run = slipway_events.start(model=model, parameters=sum(parameter.numel() for parameter in net.parameters()))
    for epoch in run.epochs(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            run.loss(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
