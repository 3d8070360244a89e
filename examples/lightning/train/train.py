"""A small classifier trained by Lightning on points that the script makes itself; nothing is fetched.
By hand: python train.py, or torchrun --nproc-per-node 2 train.py"""

import argparse
import os

import lightning
import torch
from slipway_lightning import SlipwayCallback
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    def training_step(self, batch, index):
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        scores = self.net(batch[0])
        self.log("val_loss", cross_entropy(scores, batch[1]), sync_dist=True)
        self.log("val_accuracy", (scores.argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def ring(points: int, seed: int) -> TensorDataset:
    """Points of the plane, and whether each is near the unit circle."""
    places = torch.randn(points, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(places, ((places.norm(dim=1) - 1).abs() < 0.4).long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        # torchrun starts the processes, and tells each of them how many there are
        num_nodes=int(os.environ.get("SLIPWAY_NUM_NODES", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        max_epochs=options.epochs,
        callbacks=[SlipwayCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Classifier(options.width),
        DataLoader(ring(4096, 0), options.batch_size, shuffle=True, drop_last=True),
        DataLoader(ring(512, 1), options.batch_size),
    )


if __name__ == "__main__":
    main()
