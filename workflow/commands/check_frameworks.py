"""Compare whether the frameworks of a study train the same networks, for `slipway check-frameworks`.

It is judged by the first losses of the study's runs, and by whether the ranks of these ended with the same parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from base import jsonfile, publish
from base.errors import ConfigError, RecordError
from base.humanize import and_more, counted
from workflow.commands import chosen_study, run
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyArgument, snakemake_config
from workflow.commands.watching import output
from workflow.report.same_network import (
    Compared,
    FirstRun,
    Group,
    called,
    compare,
    compared_steps,
    difference_in_words,
    drops,
    groups_of,
    loss_text,
    to_json,
)
from workflow.run.record.model import NotBelieved
from workflow.run.record.rate import FIRST_STEPS, first_losses, in_words
from workflow.run.record.reading import MAX_BYTES, read_record
from workflow.study import paths
from workflow.study.cell import Cell, Run
from workflow.study.model import CellKeys
from workflow.study.next_command import command
from workflow.study.series import words_of
from workflow.study.study import Study, load_study

# The first losses of the cells of a study.


def first_runs(study: Study, cell_ids: Sequence[str]) -> dict[str, FirstRun]:
    """Return for each cell the first run that ended well and told losses. Raises RecordError for a record that is not to be believed."""
    found: dict[str, FirstRun] = {}
    for planned in sorted(study.runs, key=lambda planned: planned.repeat):
        if planned.cell.cell_id in cell_ids and planned.cell.cell_id not in found:
            path = study.record_path(planned.run_id)
            found_run = _first_run(path) if path.exists() else None
            if found_run is not None:
                found[planned.cell.cell_id] = found_run
    return found


def _first_run(path: Path) -> FirstRun | None:
    """Return the first losses of a run, or None where it did not end well, or told no losses."""
    try:
        record = read_record(jsonfile.read_content(path, RecordError, MAX_BYTES))
        losses = first_losses(record) if record.status == "ok" else {}
        return FirstRun(losses=losses, replicas=None if record.training is None else record.training.replicas) if losses else None
    except NotBelieved as error:
        raise RecordError(f"{path}: {error}") from error


# The short runs, a study of its own, whose results are removed when they have told their losses.


FILE: Final = "short-runs.yaml"
NAME: Final = "check-{digest}"
ONE_OF_TWO: Final = ("global_batch_size", "epochs")
"""Keys that a cell has beside batch_size and steps, and a study must not have."""


@dataclass(frozen=True, kw_only=True)
class ShortRuns:
    """The short runs.

    `study`: their study file, as it is written. `cells`: for each of its rows the cells of the study that it stands for.
    """

    study: Mapping[str, Any]
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ShortResults:
    """The first losses by the cells of the study. `problem`: in words, where a short run told no losses."""

    runs: Mapping[str, FirstRun]
    problem: str | None = None


NO_SHORT_RUNS: Final = ShortResults(runs={})


def plan_short_runs(study: Study, cells: Sequence[Cell]) -> ShortRuns:
    """Plan runs of FIRST_STEPS steps for `cells`, without dropout, for which each framework draws its own numbers.

    Cells that differ only in their length have one run.
    """
    rows: dict[bytes, tuple[dict[str, Any], list[str]]] = {}
    for cell in cells:
        row = {key: value for key, value in cell.to_json().items() if key in CellKeys.model_fields and value is not None}
        row |= {"steps": {"warmup": 0, "measured": FIRST_STEPS}, "save_parameters": False, "dropout": False}
        row = {key: value for key, value in row.items() if key not in ONE_OF_TWO}
        rows.setdefault(jsonfile.canonical_json(row), (row, []))[1].append(cell.cell_id)
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
    digest = hashlib.sha256(jsonfile.canonical_json([str(study.path.absolute()), content])).hexdigest()[:12]
    named = {"study": NAME.format(digest=digest), **content}
    return ShortRuns(study=named, cells=tuple(tuple(ids) for _, ids in rows.values()))


def make_short_runs(study: Study, cells: Sequence[Cell]) -> ShortResults:
    """Run them on the study's site. What they leave is removed, unless one has told no loss: then it can be looked at, and goes on with the
    next call."""
    plan = plan_short_runs(study, cells)
    directory = paths.results_dir(study.site.storage, plan.study["study"])
    path = directory / FILE
    directory.mkdir(parents=True, exist_ok=True)
    publish.publish(path, json.dumps(plan.study, indent=1).encode())
    with contextlib.redirect_stdout(sys.stderr):  # standard output may be a document
        output.line(
            f"{study.name}: {counted(len(plan.cells), 'short run')} of {FIRST_STEPS} steps in {directory}; they are no results of the "
            "study, and are removed when they have told their losses"
        )
        with contextlib.suppress(RecordError):  # which runs have no result is told below
            run.run_study([str(path), "--until", "stage_train_push"], snakemake_config(study.chosen_site, "failed", False), table=False)
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


MOST_NAMED: Final = 5


def main(
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    runs: Annotated[bool, typer.Option("--run", help="Run the first five steps of cells without a finished run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the losses of the first five steps of cells that differ only in their framework; exit 19 unless all are equal to 1e-5."""
    _compare(chosen_study.load_chosen_study(study, site), as_json, runs=runs)


def _compare(study: Study, as_json: bool, *, runs: bool) -> None:
    """Raise ConfigError where no cells differ only in their framework, RecordError unless all are the same, and on all ranks."""
    found = groups_of(study.cells)
    if not found:
        raise ConfigError(
            f"{study.path}: no two cells differ only in their framework (or in its backend, strategy or reader), so there is nothing to "
            "compare; axes: framework: [...]"
        )
    if runs:  # short ones have no dropout: where there is some, they alone tell of the network
        known = first_runs(study, [cell.cell_id for cells in found for cell in cells if not drops(cell)])
        found = [[replace(cell, dropout=False) for cell in cells] for cells in found]
    else:
        known = first_runs(study, [cell.cell_id for cells in found for cell in cells])
    missing = [study.cell(cell.cell_id) for cells in found for cell in cells if cell.cell_id not in known]
    short = make_short_runs(study, missing) if runs and missing else NO_SHORT_RUNS
    groups = [compare(cells, {**known, **short.runs}) for cells in found]
    if as_json:
        output.json_value({"study": study.name, "groups": [to_json(group) for group in groups]})
    else:
        _print(study, groups)
    _refuse(study, groups, short.problem)


def _print(study: Study, groups: Sequence[Group]) -> None:
    cells = {cell.cell_id: cell for cell in study.cells}
    common = [
        replace(cells[group.cells[0].cell.cell_id], framework="", backend="auto", strategy="ddp", reader="slipway", layout="")
        for group in groups
    ]  # what a group has in common
    words = words_of(common, study.site, 1)
    rows = []
    for cell, group in zip(common, groups, strict=True):
        for number, one in enumerate(group.cells):
            first, last = (None, None) if one.losses is None else (one.losses.get(0), one.losses.get(FIRST_STEPS - 1))
            name = "" if number else words(Run(cell=cell, repeat=1))
            rows.append([name, called(one.cell), one.cell.layout, loss_text(first), loss_text(last), _ranks(one), _verdict(one, group)])
    output.table(["cell", "framework", "layout", "loss of step 0", f"of step {FIRST_STEPS - 1}", "final parameters", "network"], rows)


def _ranks(one: Compared) -> str:
    found = one.replicas
    if found is None:
        return "-" if one.run is None else "not told"
    if found.apart:
        return f"other ones on {in_words(found.apart)} of {found.ranks}"
    return f"equal on {found.ranks} ranks" if found.ranks > 1 else "of 1 rank"


def _verdict(one: Compared, group: Group) -> str:
    if one.losses is None:
        return "not known: no run has finished"
    if not group.is_compared:
        return "cannot be told: each framework draws its own dropout"
    if group.reference is None or one.cell == group.reference.cell:
        return "the others are compared with it"
    if one.differs_at is None:
        own = compared_steps(one.cell, group.reference.cell) == 1
        return "the same at step 0; after it not compared: its samples come in an order of its own" if own else "the same"
    return f"not the same network: {difference_in_words(one, group)}"


def _refuse(study: Study, groups: Sequence[Group], problem: str | None) -> None:
    other = [one.cell.cell_id for group in groups for one in group.cells if one.differs_at is not None]
    missing = [one.cell.cell_id for group in groups for one in group.cells if one.losses is None]
    if other:
        named = ", ".join(other[:MOST_NAMED]) + (f" {more}" if (more := and_more(len(other), MOST_NAMED)) else "")
        raise RecordError(f"{study.name}: not the same network: {named}; what these frameworks train cannot be compared")
    apart = [
        f"{one.cell.cell_id} ({in_words(one.replicas.apart)})"
        for group in groups
        for one in group.cells
        if one.replicas is not None and one.replicas.apart
    ]
    if apart:
        named = ", ".join(apart[:MOST_NAMED]) + (f" {more}" if (more := and_more(len(apart), MOST_NAMED)) else "")
        raise RecordError(f"{study.name}: ranks ended with other parameters than the others of their run: {named}; they have come apart")
    if problem is not None:
        raise RecordError(f"{study.name}: {problem}")
    if missing:
        raise RecordError(
            f"{study.name}: {counted(len(missing), 'cell')} without a finished run; {command(study, 'run')} makes them, or --run short ones"
        )
    drawn = dict.fromkeys(group.cells[0].cell.model for group in groups if not group.is_compared)
    if drawn:
        raise RecordError(
            f"{study.name}: {', '.join(drawn)} with dropout, for which each framework draws its own numbers: the losses of these runs tell "
            "nothing of the network; --run makes short ones without"
        )
