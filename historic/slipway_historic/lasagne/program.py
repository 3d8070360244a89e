"""One rank of a training or inference run in Lasagne. In and out: docs/developers/framework-contract.md. It writes events, parameters
and the exit code. The run itself is slipway_program/driver.py; what is Lasagne's is in slipway_lasagne."""

from functools import partial
from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Import here, and not above: Theano compiles a part of itself when it is imported, and its failure must be an event too."""
    from slipway_historic_program.theano_flags import leaving_no_files, set_flags
    from slipway_program.driver import run

    set_flags()
    from slipway_lasagne.trainer import LasagneTrainer  # type: ignore[import-not-found]

    return partial(run, make_trainer=leaving_no_files(LasagneTrainer))


if __name__ == "__main__":
    main(load)
