"""Write Weights & Biases' offline runs by its library: `wandb sync` uploads them."""

import os
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from base.errors import UnsupportedRequest
from extras.export.runs import ExportedRun, parameters, results, tags
from extras.export.tensorboard import scalars
from workflow.study.cell import unit_of

NEXT: Final = "wandb sync {to}/<study>/wandb/offline-run-*"
OFFLINE: Final = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
"""Nothing is sent, of its own errors neither."""
MISSING: Final = f"the library of Weights & Biases is not installed here: {sys.executable} -m pip install 'wandb>=0.20'"


def export(runs: Sequence[ExportedRun], to: Path) -> int:
    """Write <to>/wandb/offline-run-*, one for each run, as Format has it."""
    os.environ.update(OFFLINE)
    try:
        import wandb
    except ImportError as error:
        raise UnsupportedRequest(MISSING) from error
    shutil.rmtree(to / "wandb", ignore_errors=True)
    for run in runs:
        _write(wandb, to, run)
    wandb.teardown()  # a process of the library's writes the files, and is waited for here
    return sum(path.is_file() for path in (to / "wandb").glob("offline-run-*/*.wandb"))


def _write(wandb: Any, to: Path, run: ExportedRun) -> None:
    settings = wandb.Settings(
        silent=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        console="off",
        disable_git=True,
        save_code=False,
    )
    written = wandb.init(
        project=to.name,
        name=run.run_id,
        id=run.run_id[-64:],
        dir=str(to),
        mode="offline",
        config={**parameters(run.cell), **tags(run.record, run.marks)},
        settings=settings,
        reinit="finish_previous",
    )
    told = scalars(run.events(), unit_of(run.cell), 0.0)
    for step, group in groupby(sorted(told, key=lambda one: one.step), key=lambda one: one.step):
        written.log({one.tag: one.value for one in group}, step=step)
    written.summary.update(results(run.record))
    written.finish(exit_code=0 if run.record["status"] == "ok" else 1)
