"""Runs of a few steps that tell the first losses of cells: a study of its own, with results of its own, which are removed when they have
told them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from base.errors import RecordError
from base.jsonfile import canonical_json
from base.publish import publish
from base.units import counted
from workflow.commands import run
from workflow.commands.first_runs import first_runs
from workflow.commands.watching import show
from workflow.report.same_network import FirstRun
from workflow.run.record.losses import FIRST_STEPS
from workflow.study import paths
from workflow.study.cell import Cell
from workflow.study.model import CellKeys
from workflow.study.next_command import command
from workflow.study.study import Study, load_study

FILE: Final = "short-runs.yaml"
NAME: Final = "check-{digest}"
ONE_OF_TWO: Final = ("global_batch_size", "epochs")
"""Keys that a cell has beside batch_size and steps, and a study must not have."""


@dataclass(frozen=True, kw_only=True)
class ShortRuns:
    """`study`: the file of the short runs, as it is written. `cells`: for each of its rows the cells of the study that it stands for."""

    study: Mapping[str, Any]
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ShortResults:
    """By the cells of the study. `problem`: in words, where a short run told no losses."""

    runs: Mapping[str, FirstRun]
    problem: str | None = None


NO_SHORT_RUNS: Final = ShortResults(runs={})


def plan_short_runs(study: Study, cells: Sequence[Cell]) -> ShortRuns:
    """Each of `cells` for FIRST_STEPS steps, without dropout, for which each framework draws its own numbers; those that differ only in
    their length are one. Pure."""
    rows: dict[bytes, tuple[dict[str, Any], list[str]]] = {}
    for cell in cells:
        row = {key: value for key, value in cell.to_json().items() if key in CellKeys.model_fields and value is not None}
        row |= {"steps": {"warmup": 0, "measured": FIRST_STEPS}, "save_parameters": False, "dropout": False}
        row = {key: value for key, value in row.items() if key not in ONE_OF_TWO}
        rows.setdefault(canonical_json(row), (row, []))[1].append(cell.cell_id)
    names = sorted({cell.dataset for cell in cells})
    content = {
        "datasets": {name: study.datasets[name].to_json() for name in names},
        "base": {"repeats": 1},
        "include": [row for row, _ in rows.values()],
        "limits": {
            "walltime": f"{study.limits.walltime_s:.0f}s",
            "init": f"{study.limits.init_s:.0f}s",
            "gpu_hours": study.limits.gpu_hours,
        },
    }
    digest = hashlib.sha256(canonical_json([str(study.path.absolute()), content])).hexdigest()[:12]
    named = {"study": NAME.format(digest=digest), **content}
    return ShortRuns(study=named, cells=tuple(tuple(ids) for _, ids in rows.values()))


def make_short_runs(study: Study, cells: Sequence[Cell]) -> ShortResults:
    """Run them on the study's site. What they leave is removed, unless one has told no loss: then it can be looked at, and goes on with the
    next call."""
    plan = plan_short_runs(study, cells)
    directory = paths.results_dir(study.site.storage, plan.study["study"])
    path = directory / FILE
    directory.mkdir(parents=True, exist_ok=True)
    publish(path, json.dumps(plan.study, indent=1).encode())
    with contextlib.redirect_stdout(sys.stderr):  # standard output may be a document
        show.line(
            f"{study.name}: {counted(len(plan.cells), 'short run')} of {FIRST_STEPS} steps in {directory}; they are no results of the "
            "study, and are removed when they have told their losses"
        )
        with contextlib.suppress(RecordError):  # which runs have no result is told below
            run.main([str(path), "--until", "stage_train_push"], {"site": study.chosen_site, "retry": "failed"}, None, path, table=False)
    short = load_study(path, study.chosen_site)
    told = first_runs(short, [cell.cell_id for cell in short.cells])
    runs = {
        cell_id: told[cell.cell_id] for cell, ids in zip(short.cells, plan.cells, strict=True) for cell_id in ids if cell.cell_id in told
    }
    if len(told) < len(short.cells):
        problem = (
            f"{len(short.cells) - len(told)} of {counted(len(short.cells), 'short run')} told no loss; `{command(short, 'status')}` says "
            f"why; they stay in {directory}, and the same command tries them again"
        )
        return ShortResults(runs=runs, problem=problem)
    shutil.rmtree(directory)
    return ShortResults(runs=runs)
