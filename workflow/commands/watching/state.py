"""Where each run of a study stands, from the files on storage: records, leases, attempts. Reads only."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.schedulers import holder_alive
from cluster.types import Holder
from workflow.run.record.attempts import Found, find_record
from workflow.run.record.busy import together
from workflow.run.record.log_tail import messages
from workflow.run.record.model import NotBelieved, RunRecord
from workflow.run.record.reading import record_of
from workflow.run.record.replicas import NOT_COMPARED
from workflow.run.record.waiting import STATUS as WAITING
from workflow.run.record.waiting import waiting_reason
from workflow.run.storage.asked_result import parse_asked
from workflow.study import paths
from workflow.study.cell import Run
from workflow.study.study import Study

STATES: Final = ("done", "failed", "prevented", "running", "queued", "missing")
Alive = Callable[[Holder], bool | None]
MAX_REASON: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """`state` is one of STATES; `status` the record's own word. Done and failed have a published record, which is what snakemake sees.
    Queued: a job for it is in the scheduler's queue, or has begun and said nothing yet."""

    run: Run
    state: str
    status: str | None = None
    reason: str | None = None
    attempt: int | None = None
    log: str | None = None
    checkpoint_step: int | None = None
    """Where the next attempt goes on."""
    engine: str | None = None
    """Of its record."""
    dataset: str | None = None
    """The digest of the dataset, of its record."""

    @property
    def to_run(self) -> bool:
        """Whether `snakemake` would run it now."""
        return self.state not in ("done", "failed")


def run_states(study: Study, alive: Alive = holder_alive) -> tuple[RunState, ...]:
    """The state of every run, in the study's order; `alive` says whether the holder of a lease lives. Two listings for those never started,
    a few small reads for each of the others. A run that was refused at its start has a log and nothing else."""
    logs = {parse_asked(name.removesuffix(".log"))[0] for name in _names(study.results_dir / "logs")}
    started = _names(study.results_dir / "runs") | logs
    results = study.results_dir
    return tuple(state_of(results, run, alive) if run.run_id in started else RunState(run=run, state="missing") for run in study.runs)


def counts(states: Iterable[RunState]) -> dict[str, int]:
    """How many runs are in each state, all states named."""
    found = Counter(state.state for state in states)
    return {state: found[state] for state in STATES}


def state_of(results: Path, run: Run, alive: Alive = holder_alive) -> RunState:
    """The state of one run."""
    run_dir = paths.run_dir(results, run.run_id)
    holder = _holder(run_dir, alive)
    if holder is not None:
        return RunState(run=run, state="running", reason=holder, log=_supervisor_log(results, run.run_id))
    published = (run_dir / "record.json").exists()
    found = find_record(str(run_dir.parent), run.run_id)
    record, problem = _believed(found, run, results.name)
    if published and record is None:
        where = run_dir.parent / str(found.path)
        return RunState(run=run, state="failed", status="unreadable", reason=_short(f"{where}: {problem}"), log=str(run_dir))
    if record is None:
        log = _supervisor_log(results, run.run_id)
        reason = _why_missing(log) if log or _names(run_dir) else None
        waits = None if reason is None else waiting_reason(reason)
        if waits is not None:
            return RunState(run=run, state="prevented", status=WAITING, reason=waits, log=log)
        return RunState(run=run, state="missing", reason=_short(reason), log=log)
    return _from_record(run, record, run_dir, published)


def _believed(found: Found, run: Run, study: str) -> tuple[RunRecord | None, str]:
    """The record, or why it is not believed."""
    try:
        return (None if found.content is None else record_of(found.content, run.run_id, study=study)), "it is gone"
    except NotBelieved as error:
        return None, str(error)


def _from_record(run: Run, record: RunRecord, run_dir: Path, published: bool) -> RunState:
    status, attempt = record.status, record.attempt
    reason = record.status_reason or "; ".join(filter(None, [*_warnings(record), _went_on(record), *together(record.busy or ())]))
    state = "prevented" if record.kind != "result" else "done" if status == "ok" else "failed"
    if state != "prevented" and not published:
        state, reason = "missing", f"attempt {attempt} ended with {status} and is not published: the next start does that"
    return RunState(
        run=run,
        state=state,
        status=status,
        reason=_short(reason),
        attempt=attempt,
        log=str(run_dir / "attempts" / str(attempt) / "logs"),
        checkpoint_step=None if record.checkpoint is None else record.checkpoint.step,
        engine=record.engine,
        dataset=None if record.dataset is None else record.dataset.digest,
    )


def _warnings(record: RunRecord) -> list[str]:
    """Return the warnings that make the numbers doubtful: all but those of a busy machine and of ranks that nobody compared."""
    return [one for one in record.warnings or () if one != NOT_COMPARED and one not in (record.busy or ())]


def _went_on(record: RunRecord) -> str | None:
    """Of a run that was cut off and went on from a checkpoint."""
    earlier = record.resumed_from
    return None if earlier is None else f"went on from attempt {earlier.attempt} at step {earlier.step}"


def _holder(run_dir: Path, says: Alive) -> str | None:
    """Who runs it now, in words; None when nobody does. A holder of whom we cannot know counts as alive, as for a supervisor."""
    from workflow.run.storage.holders import holder_words, lease_of

    lease = lease_of(run_dir)
    alive = None if lease is None else says(lease.holder)
    return None if lease is None or alive is False else holder_words(lease, alive)


def _why_missing(log: str | None) -> str:
    """Of a run that was started: why it could not begin, else the last that is known of it."""
    said = [] if log is None else messages(_last_told(Path(log)))
    errors = [message for level, message in said if level == "ERROR"]
    if errors:
        return errors[-1]
    return "started, and left no record" + (f"; its log ends with: {said[-1][1]}" if said else "")


def _last_told(log: Path) -> Path:
    """`log`, or the newer file beside it where a supervisor was refused the run: nobody has it now, so that is why."""
    refused = log.with_suffix(paths.REFUSED)
    return refused if refused.is_file() and refused.stat().st_mtime >= log.stat().st_mtime else log


def _supervisor_log(results: Path, run_id: str) -> str | None:
    path = paths.supervisor_log(results, run_id)
    return None if path is None else str(path)


def _short(reason: object) -> str | None:
    if not reason:
        return None
    text = str(reason).splitlines()[0] if str(reason).splitlines() else ""
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()
