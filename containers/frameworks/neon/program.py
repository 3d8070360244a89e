"""One rank of a training run in neon. In: the files and variables of docs/framework-contract.md; out: events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is neon's is in slipway_neon."""

from __future__ import annotations

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Here, and not above: neon takes a second to import, and its failure must be an event too."""
    from slipway_neon.trainer import NeonTrainer  # type: ignore[import-not-found]
    from slipway_program.driver import run

    return partial(run, make_trainer=NeonTrainer)


if __name__ == "__main__":
    main(load)
