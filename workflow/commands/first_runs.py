"""The first losses of the cells of a study, and whether the ranks stayed alike, from the records of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from base.errors import RecordError
from base.jsonfile import read_content
from workflow.report.same_network import FirstRun
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.losses import first_losses
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import read_record
from workflow.study.study import Study


def first_runs(study: Study, cell_ids: Sequence[str]) -> dict[str, FirstRun]:
    """Of each cell the first run that ended well and told losses. Raises RecordError for a record that is not to be believed."""
    found: dict[str, FirstRun] = {}
    for run in sorted(study.runs, key=lambda run: run.repeat):
        if run.cell.cell_id in cell_ids and run.cell.cell_id not in found:
            path = study.record_path(run.run_id)
            told = _first_run(path) if path.exists() else None
            if told is not None:
                found[run.cell.cell_id] = told
    return found


def _first_run(path: Path) -> FirstRun | None:
    """None of a run that did not end well, or told no losses."""
    try:
        record = read_record(read_content(path, RecordError, MAX_BYTES))
        losses = first_losses(record) if record.status == "ok" else {}
        return FirstRun(losses=losses, replicas=None if record.training is None else record.training.replicas) if losses else None
    except NotBelieved as error:
        raise RecordError(f"{path}: {error}") from error
