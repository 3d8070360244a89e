"""One rank of a training or inference run in Chainer. In: the files and variables of docs/framework-contract.md; out: events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is Chainer's is in slipway_chainer."""

from __future__ import annotations

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Here, and not above: Chainer takes a second to import, and its failure must be an event too."""
    from slipway_chainer.trainer import ChainerTrainer  # type: ignore[import-not-found]
    from slipway_program.driver import run

    return partial(run, make_trainer=ChainerTrainer)


if __name__ == "__main__":
    main(load)
