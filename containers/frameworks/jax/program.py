"""One rank of a training or inference run in JAX. In: the files and variables of docs/framework-contract.md; out: events, parameters and
the exit code. The run itself is slipway_program/driver.py; what is JAX's is in slipway_jax."""

from __future__ import annotations

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Here, and not above: a failure to import JAX must be an event too."""
    from slipway_jax.trainer import JaxTrainer  # type: ignore[import-not-found]
    from slipway_program.driver import run

    return partial(run, make_trainer=JaxTrainer)


if __name__ == "__main__":
    main(load)
