"""The driver of a training in BigDL, which works for all nodes. In and out: docs/developers/framework-contract.md. It is also given the
place of Spark's master, and writes events, parameters and the exit code."""

from typing import Any

from slipway_program.rank import main


def load() -> Any:
    """Import here, and not above: Spark takes a second to import, and its failure must be an event too."""
    from slipway_bigdl.training import run  # type: ignore[import-not-found]

    return run


if __name__ == "__main__":
    main(load)
