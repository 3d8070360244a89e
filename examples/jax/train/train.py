"""A small classifier trained by JAX: each process has its part of the batch, and the compiled step sees all of it.
By hand: python train.py --data DIRECTORY, or several, each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

import argparse
import os
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import slipway_events
import slipway_reader
from jax.sharding import NamedSharding, PartitionSpec


def batches(split, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch of this process's images; all processes have equally many."""
    order = np.random.default_rng(0).permutation(len(split))[jax.process_index() :: jax.process_count()]
    for first in range(0, len(split) // jax.process_count() - size + 1, size):
        images, labels = split.read_many(np.sort(order[first : first + size]))
        yield images.reshape(size, -1).astype(np.float32) / 255, labels.astype(np.int32)


def start(pixels: int, width: int) -> dict[str, jax.Array]:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(first, (pixels, width)) * pixels**-0.5,
        "out": jax.random.normal(second, (width, 10)) * width**-0.5,
    }


def loss_of(weights: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.relu(images @ weights["hidden"]) @ weights["out"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1).mean()


@jax.jit
def train_step(weights: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """The mean is that of the global batch, so JAX adds the gradients of all processes up by itself."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
    return jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, weights, gradients), loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        coordinator = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
        jax.distributed.initialize(coordinator, world_size, int(os.environ["RANK"]), local_device_ids=int(os.environ["LOCAL_RANK"]))
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    split_up, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    split = slipway_reader.open_dataset(options.data).split("train")
    weights = jax.device_put(start(split.read(0)[0].size, options.width), everywhere)

    run = slipway_events.start(model=lambda: weights, parameters=sum(weight.size for weight in weights.values()))
    for _ in run.epochs(options.epochs):
        for batch in run.steps(batches(split, options.batch_size)):
            images, labels = (jax.make_array_from_process_local_data(split_up, part) for part in batch)
            weights, loss = train_step(weights, images, labels)
            run.loss(loss)


if __name__ == "__main__":
    main()
