"""A small classifier whose images are read and decoded by NVIDIA DALI, from the shards as they are: LMDB with Caffe's Datum.
By hand, on a GPU: torchrun --nproc-per-node 1 train.py --data DIRECTORY"""

import argparse
import os

import slipway_events
import slipway_reader
import torch
import torch.distributed as dist
from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch.nn.parallel import DistributedDataParallel


@pipeline_def
def pictures(paths, rank, world_size):
    files, labels = fn.readers.caffe(path=paths, random_shuffle=True, shard_id=rank, num_shards=world_size, name="reader")
    return fn.decoders.image(files, device="mixed"), labels.gpu()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dataset = slipway_reader.open_dataset(options.data)
    pipeline = pictures(
        dataset.split("train").paths,
        dist.get_rank(),
        dist.get_world_size(),
        batch_size=options.batch_size,
        num_threads=2,
        device_id=local_rank,
    )
    loader = DALIGenericIterator(pipeline, ["images", "labels"], reader_name="reader", auto_reset=True)
    torch.manual_seed(0)
    height, width = dataset.size
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(height * width * dataset.channels, dataset.num_classes)).cuda()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    run = slipway_events.start(model=model, parameters=sum(parameter.numel() for parameter in net.parameters()))
    for _ in run.epochs(options.epochs):
        for batch in run.steps(loader, samples=lambda batch: len(batch[0]["images"])):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch[0]["images"].float() / 255), batch[0]["labels"].flatten().long())
            loss.backward()
            optimizer.step()
            run.loss(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
