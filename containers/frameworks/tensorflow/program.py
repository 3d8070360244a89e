"""One rank of a training or inference run in TensorFlow. In: the files and variables of docs/framework-contract.md; out: events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is TensorFlow's is in slipway_tensorflow."""

from __future__ import annotations

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Here, and not above: TensorFlow takes two seconds to import, and its failure must be an event too."""
    from slipway_program.driver import run
    from slipway_tensorflow.trainer import TensorflowTrainer  # type: ignore[import-not-found]

    return partial(run, make_trainer=TensorflowTrainer)


if __name__ == "__main__":
    main(load)
