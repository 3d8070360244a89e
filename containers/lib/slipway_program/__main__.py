"""Run one rank of the framework in FOLDER: `python -m slipway_program FOLDER MODULE:NAME`, where NAME makes its trainer (driver.py)."""

import sys
from functools import partial
from importlib import import_module
from typing import Any

from .rank import main


def import_trainer() -> Any:
    folder, name = sys.argv[1:]
    sys.path[0] = folder  # in place of the directory that the rank writes to
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def load() -> Any:
    """Import the framework: that takes a second, and its failure must be an event too."""
    from .driver import run

    return partial(run, make_trainer=import_trainer())


if __name__ == "__main__":
    main(load)
