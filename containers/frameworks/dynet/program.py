"""One rank of a training or inference run in DyNet. In: the files and variables of docs/framework-contract.md; out: events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is DyNet's is in slipway_dynet."""

from __future__ import annotations

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Here, and not above: DyNet takes a second to import, and its failure must be an event too."""
    from slipway_dynet.trainer import DynetTrainer  # type: ignore[import-not-found]
    from slipway_program.driver import run

    return partial(run, make_trainer=DynetTrainer)


if __name__ == "__main__":
    main(load)
