"""`slipway check-frameworks`: whether the frameworks of a study train the same networks, by the first losses of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from base.errors import ConfigError, RecordError
from base.jsonfile import read_content
from base.units import and_more, counted
from workflow.commands.told_study import told_study
from workflow.commands.watching import show
from workflow.report.same_network import Compared, Group, Losses, compare, groups_of, to_json
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.kinds import NotBelieved
from workflow.run.record.losses import FIRST_STEPS, first_losses
from workflow.run.record.reading import read_value
from workflow.study.cell import Run
from workflow.study.cell_words import words_of
from workflow.study.next_command import command
from workflow.study.paths import record_path
from workflow.study.study import Study

MOST_NAMED: Final = 5


def main(path: Path, site: str | None, as_json: bool) -> None:
    """Print for each cell whether its network is that of the others. Raises ConfigError where no cells differ only in their framework,
    RecordError unless all are the same."""
    study = told_study(path, site)
    found = groups_of(study.cells)
    if not found:
        raise ConfigError(
            f"{study.path}: no two cells differ only in their framework, so there is nothing to compare; axes: framework: [...]"
        )
    groups = [compare(cells, {cell.cell_id: losses for cell in cells for losses in _losses_of(study, cell.cell_id)}) for cells in found]
    if as_json:
        show.json_value({"study": study.name, "groups": [to_json(group) for group in groups]})
    else:
        _print(study, groups)
    _refuse(study, groups)


def _losses_of(study: Study, cell_id: str) -> Iterator[Losses]:
    """Of the first run of the cell that ended well, if there is one."""
    for run in study.runs:
        if run.cell.cell_id == cell_id:
            path = record_path(study.results_dir, run.run_id)
            losses = _first_losses(path) if path.exists() else {}
            if losses:
                yield losses
                return


def _first_losses(path: Path) -> Losses:
    """Nothing of a run that did not end well. Raises RecordError for a record that is not to be believed."""
    try:
        record = read_value(read_content(path, RecordError, MAX_BYTES), losses=True)
        return first_losses(record) if record.get("status") == "ok" else {}
    except NotBelieved as error:
        raise RecordError(f"{path}: {error}") from error


def _print(study: Study, groups: Sequence[Group]) -> None:
    alike = [replace(group.cells[0].cell, framework="", layout="") for group in groups]  # what a group has in common
    words = words_of(alike, study.site, 1)
    rows = []
    for cell, group in zip(alike, groups, strict=True):
        for number, one in enumerate(group.cells):
            first, last = (None, None) if one.losses is None else (one.losses.get(0), one.losses.get(FIRST_STEPS - 1))
            name = "" if number else words(Run(cell=cell, repeat=1))
            rows.append([name, one.cell.framework, one.cell.layout, _number(first), _number(last), _verdict(one, group)])
    show.table(["cell", "framework", "layout", "loss of step 0", f"of step {FIRST_STEPS - 1}", "network"], rows)


def _verdict(one: Compared, group: Group) -> str:
    if one.losses is None:
        return "not known: no run has finished"
    if group.reference is None or one.cell == group.reference.cell:
        return "the others are compared with it"
    if one.differs_at is None:
        return "the same"
    ours, theirs = one.losses.get(one.differs_at), (group.reference.losses or {}).get(one.differs_at)
    return f"not the same network: step {one.differs_at}, loss {_number(ours)}, not {_number(theirs)}"


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.7g}"


def _refuse(study: Study, groups: Sequence[Group]) -> None:
    other = [one.cell.cell_id for group in groups for one in group.cells if one.differs_at is not None]
    missing = [one.cell.cell_id for group in groups for one in group.cells if one.losses is None]
    if other:
        named = ", ".join(other[:MOST_NAMED]) + (f" {more}" if (more := and_more(len(other), MOST_NAMED)) else "")
        raise RecordError(f"{study.name}: not the same network: {named}; what these frameworks train cannot be compared")
    if missing:
        raise RecordError(f"{study.name}: {counted(len(missing), 'cell')} without a finished run; {command(study, 'run')} makes them")
