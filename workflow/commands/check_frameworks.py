"""`slipway check-frameworks`: whether the frameworks of a study train the same networks, by the first losses of its runs, and whether
the ranks of these ended with the same parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from base.errors import ConfigError, RecordError
from base.units import and_more, counted
from workflow.commands.first_runs import first_runs
from workflow.commands.short_runs import NO_SHORT_RUNS, make_short_runs
from workflow.commands.told_study import told_study
from workflow.commands.watching import show
from workflow.report.same_network import (
    Compared,
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
from workflow.run.record.losses import FIRST_STEPS
from workflow.run.record.replicas import in_words
from workflow.study.cell import Run
from workflow.study.cell_words import words_of
from workflow.study.next_command import command
from workflow.study.study import Study

MOST_NAMED: Final = 5


def main(path: Path, site: str | None, as_json: bool, *, runs: bool) -> None:
    """Print for each cell whether its network is that of the others; `runs`: after short runs of those that have no finished one. Raises
    ConfigError where no cells differ only in their framework, RecordError unless all are the same, and on all ranks."""
    study = told_study(path, site)
    found = groups_of(cell.to_json() for cell in study.cells)
    if not found:
        raise ConfigError(
            f"{study.path}: no two cells differ only in their framework (or in its backend, strategy or reader), so there is nothing to "
            "compare; axes: framework: [...]"
        )
    if runs:  # short ones have no dropout: where there is some, they alone tell of the network
        known = first_runs(study, [cell["cell_id"] for cells in found for cell in cells if not drops(cell)])
        found = [[{**cell, "dropout": False} for cell in cells] for cells in found]
    else:
        known = first_runs(study, [cell["cell_id"] for cells in found for cell in cells])
    missing = [study.cell(cell["cell_id"]) for cells in found for cell in cells if cell["cell_id"] not in known]
    short = make_short_runs(study, missing) if runs and missing else NO_SHORT_RUNS
    groups = [compare(cells, {**known, **short.runs}) for cells in found]
    if as_json:
        show.json_value({"study": study.name, "groups": [to_json(group) for group in groups]})
    else:
        _print(study, groups)
    _refuse(study, groups, short.problem)


def _print(study: Study, groups: Sequence[Group]) -> None:
    cells = {cell.cell_id: cell for cell in study.cells}
    alike = [
        replace(cells[group.cells[0].cell["cell_id"]], framework="", backend="auto", strategy="ddp", reader="slipway", layout="")
        for group in groups
    ]  # what a group has in common
    words = words_of(alike, study.site, 1)
    rows = []
    for cell, group in zip(alike, groups, strict=True):
        for number, one in enumerate(group.cells):
            first, last = (None, None) if one.losses is None else (one.losses.get(0), one.losses.get(FIRST_STEPS - 1))
            name = "" if number else words(Run(cell=cell, repeat=1))
            rows.append([name, called(one.cell), one.cell["layout"], loss_text(first), loss_text(last), _ranks(one), _verdict(one, group)])
    show.table(["cell", "framework", "layout", "loss of step 0", f"of step {FIRST_STEPS - 1}", "final parameters", "network"], rows)


def _ranks(one: Compared) -> str:
    """Whether those of a run ended with the same parameters."""
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
    other = [one.cell["cell_id"] for group in groups for one in group.cells if one.differs_at is not None]
    missing = [one.cell["cell_id"] for group in groups for one in group.cells if one.losses is None]
    if other:
        named = ", ".join(other[:MOST_NAMED]) + (f" {more}" if (more := and_more(len(other), MOST_NAMED)) else "")
        raise RecordError(f"{study.name}: not the same network: {named}; what these frameworks train cannot be compared")
    apart = [
        f"{one.cell['cell_id']} ({in_words(one.replicas.apart)})"
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
    drawn = dict.fromkeys(group.cells[0].cell["model"] for group in groups if not group.is_compared)
    if drawn:
        raise RecordError(
            f"{study.name}: {', '.join(drawn)} with dropout, for which each framework draws its own numbers: the losses of these runs tell "
            "nothing of the network; --run makes short ones without"
        )
