"""Find the runs that are exported: for each the attempt that counts, its record, its events, and what other tools keep of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError
from workflow.run.record.events import RankEvents, read_events
from workflow.run.record.model import OwnKeys
from workflow.run.record.reading import find_record, names, read_record, read_value
from workflow.study import paths, series
from workflow.study.cell import SIZES, Keys


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run that has a record. `record`: as written, and believed."""

    run_id: str
    record: OwnKeys
    attempt: Path
    """The directory of the attempt on storage."""
    marks: tuple[str, ...] = ()
    """The marks that the tables put beside the run's number."""

    @property
    def cell(self) -> Keys:
        found: Keys = self.record["cell"]
        return found

    def events(self) -> dict[int, RankEvents]:
        return read_events(self.attempt, self.cell["nodes"] * self.cell["gpus_per_node"])


def exported_runs(results: Path, marks: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[ExportedRun]:
    """Yield all runs in a results directory that have a record, in order of their names, without profiles, whose steps are no measurement;
    `marks`: of run ids. Raises RecordError for a record that cannot be believed."""
    runs = results / "runs"
    for run_id in sorted(names(str(runs))):
        found = find_record(str(runs), run_id)
        if found.content is None:
            continue
        try:
            number = read_record(found.content).attempt
            record = read_value(found.content)
        except RecordError as error:
            raise RecordError(f"{runs / str(found.path)} cannot be exported: {error}; `slipway verify {results}` says more") from error
        if record["cell"].get("profile") is not None:
            continue
        attempt = paths.attempts_dir(results, run_id) / str(number)
        yield ExportedRun(run_id=run_id, record=record, attempt=attempt, marks=(marks or {}).get(run_id, ()))


# Select what other tools keep of a record beside the numbers per step: the cell as words, how the run ended, its results. Pure.


LONGEST: Final = 500
"""Characters of a value: what the least of these tools takes."""
TAGS: Final = ("run_id", "study", "status", "status_reason", "job_id", "scheduler", "site", "engine", "device", "attempt", "repeat")
RESULTS: Final = ("samples_per_s", "samples_per_s_per_gpu", "tokens_per_s", "window_s", "first_step_s")


def parameters(cell: Keys) -> dict[str, str]:
    """Return the keys of a cell that say something, nested ones as `optimizer.momentum`."""
    return {name: _text(value) for name, value in series.flat(dict(cell)).items() if value is not None and value != {}}


def series_keys(cell: Keys) -> dict[str, str]:
    """Return the parameters that make another series of a cell: not its sizes, its name and its seed."""
    return {key: value for key, value in parameters(cell).items() if key not in (*SIZES, "cell_id", "seed")}


def tags(record: OwnKeys, marks: Sequence[str] = ()) -> dict[str, str]:
    """Return where and how the run ran, and with what; and in `marks` and `warnings` what is to be known of its numbers."""
    found = {name: record.get(name) for name in TAGS}
    found |= {"marks": ", ".join(marks) or None, "warnings": "; ".join(record.get("warnings") or ()) or None}
    found |= {f"provenance.{name}": value for name, value in (record.get("provenance") or {}).items()}
    return {f"slipway.{name}": _text(value) for name, value in found.items() if value is not None}


def results(record: OwnKeys) -> dict[str, float]:
    """Return the results of the run, as far as they are known."""
    performance, training = record.get("performance") or {}, record.get("training") or {}
    found = {name: performance.get(name) for name in RESULTS}
    found |= {"final_loss": training.get("final_loss"), "run_s": record.get("run_s")}
    return {f"result/{name}": float(value) for name, value in found.items() if value is not None}


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, sort_keys=True))[:LONGEST]
