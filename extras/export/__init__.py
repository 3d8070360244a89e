"""Export runs to the formats of other tools: one module each, and a line in FORMATS."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from extras.export import extrap, mlflow, mlperf, tensorboard, wandb
from extras.export.runs import ExportedRun


class Format(Protocol):
    """The interface of a module for one format."""

    NEXT: str
    """The command to type to look at the result; {to} stands for the directory."""

    def export(self, runs: Sequence[ExportedRun], to: Path) -> int:
        """Write all that is to be said of `runs` below the directory `to`, which is there, and replace an earlier export of the same
        runs. Return the number of files. Raises UnsupportedRequest where a library is missing."""


FORMATS: Final[dict[str, Format]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "wandb": wandb,
    "mlperf": mlperf,
    "extrap": extrap,
}
