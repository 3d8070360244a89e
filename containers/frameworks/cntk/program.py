"""One rank of a training or inference run in CNTK. In: the files and variables of docs/framework-contract.md; out: events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is CNTK's is in slipway_cntk."""

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Here, and not above: a failure to load CNTK's libraries must be an event too."""
    from slipway_cntk.trainer import CntkTrainer  # type: ignore[import-not-found]
    from slipway_program.driver import run

    return partial(run, make_trainer=CntkTrainer)


if __name__ == "__main__":
    main(load)
