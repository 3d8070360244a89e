"""Whether the bytes of a record are a record of the run in whose directory they lie.

Status, graph and supervisor decide by it what is done and what is run again, so they ask the reader that the tables ask. Light: no polars.
"""

from __future__ import annotations

from typing import Any

from workflow.run.record.kinds import NotBelieved
from workflow.run.record.reading import read_fields


def record_of(content: bytes, run_id: str, attempt: int | None = None, study: str | None = None) -> dict[str, Any]:
    """The columns of the record by name. Raises NotBelieved, also where it is of another run, or of another attempt than `attempt`, or of
    another study than `study`, whose cells may have the same runs: the tables believe none of those."""
    record = read_fields(content)
    if record["run_id"] != run_id or (attempt is not None and record["attempt"] != attempt):
        raise NotBelieved(f"it says that it is of run {record['run_id']}, attempt {record['attempt']}")
    if run_id != f"{record['record_cell_id']}-r{record['repeat']}":
        raise NotBelieved(f"its cell is {record['record_cell_id']}, repeat {record['repeat']}, which is not its run")
    if study is not None and record["record_study"] not in (None, study):
        raise NotBelieved(f"it says that it is of the study {record['record_study']}, and lies in the results of {study}")
    return record
