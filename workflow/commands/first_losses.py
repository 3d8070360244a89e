"""The first losses of the cells of a study, from the records of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from base.errors import RecordError
from base.jsonfile import read_content
from workflow.report.same_network import Losses
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.kinds import NotBelieved
from workflow.run.record.losses import first_losses
from workflow.run.record.reading import read_value
from workflow.study.study import Study


def losses_of(study: Study, cell_ids: Sequence[str]) -> dict[str, Losses]:
    """Of each cell that has a run that ended well, those of the first one. Raises RecordError for a record that is not to be believed."""
    found: dict[str, Losses] = {}
    for run in sorted(study.runs, key=lambda run: run.repeat):
        if run.cell.cell_id in cell_ids and run.cell.cell_id not in found:
            path = study.record_path(run.run_id)
            losses = _first_losses(path) if path.exists() else {}
            if losses:
                found[run.cell.cell_id] = losses
    return found


def _first_losses(path: Path) -> Losses:
    """Nothing of a run that did not end well."""
    try:
        record = read_value(read_content(path, RecordError, MAX_BYTES), losses=True)
        return first_losses(record) if record.get("status") == "ok" else {}
    except NotBelieved as error:
        raise RecordError(f"{path}: {error}") from error
