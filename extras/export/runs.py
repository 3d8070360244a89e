"""Find the runs that are exported: for each the attempt that counts, with its record and where its events are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import RecordError
from workflow.run.record.events import RankEvents, read_events
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import find_record, names, read_record, read_value
from workflow.study.paths import attempts_dir


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run that has a record. `record`: as written, and believed."""

    run_id: str
    record: Mapping[str, Any]
    attempt: Path
    """The directory of the attempt on storage."""
    marks: tuple[str, ...] = ()
    """The marks that the tables put beside the run's number."""

    @property
    def cell(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["cell"]
        return found

    def events(self) -> dict[int, RankEvents]:
        return read_events(self.attempt, self.cell["nodes"] * self.cell["gpus_per_node"])


def exported_runs(results: Path, marks: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[ExportedRun]:
    """Yield all runs in a results directory that have a record, in order of their names; `marks`: of run ids. Raises RecordError for a
    record that cannot be believed."""
    runs = results / "runs"
    for run_id in sorted(names(str(runs))):
        found = find_record(str(runs), run_id)
        if found.content is None:
            continue
        try:
            number = read_record(found.content).attempt
            record = read_value(found.content)
        except NotBelieved as error:
            raise RecordError(f"{runs / str(found.path)} cannot be exported: {error}; `slipway verify {results}` tells more") from error
        attempt = attempts_dir(results, run_id) / str(number)
        yield ExportedRun(run_id=run_id, record=record, attempt=attempt, marks=(marks or {}).get(run_id, ()))
