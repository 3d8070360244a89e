"""The fixtures by which the tests of the frameworks of Slipway run programs: those of the historic ones are run alike."""

from tests.containers.frameworks.conftest import datasets, lib, reference, run_program
from tests.workflow.run.conftest import world

__all__ = ["datasets", "lib", "reference", "run_program", "world"]
