"""A small classifier trained by `fit` of Keras on points that the script makes itself; nothing is fetched. On several processes it is
Keras on JAX: they share each batch. By hand: python train.py"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from slipway_keras import SlipwayCallback


def ring(points: int, seed: int):
    """Points of the plane, and whether each is near the unit circle."""
    places = np.random.default_rng(seed).normal(size=(points, 2)).astype("float32")
    return places, (np.abs(np.linalg.norm(places, axis=1) - 1) < 0.4).astype("int32")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        jax.config.update("jax_cuda_visible_devices", os.environ["LOCAL_RANK"])  # where there are GPUs, a process has one
        keras.distribution.initialize(os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"], world_size, rank)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.layers.Dense(options.width, "relu"), keras.layers.Dense(2)])
    net.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    net.fit(
        *ring(4096, 1 + rank),
        validation_data=ring(512, 0),
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2,
        callbacks=[SlipwayCallback(samples=options.batch_size)],
    )


if __name__ == "__main__":
    main()
