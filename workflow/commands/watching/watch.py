"""Watch the runs of one `slipway run`, by their logs, leases and records on storage.

It is the same for every way of running. What the scheduler says of their jobs comes from whoever has asked it: a look waits for storage
alone.

A run has begun when its supervisor's log has changed since the start; what it does is what its supervisor said last. Only runs that have
begun and not ended are read, so a look costs the same for ten runs as for ten thousand.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Final

from base.errors import RecordError, SchedulerOutputError, SchedulerSilent
from cluster.schedulers import Scheduler, get_scheduler, holder_alive, jobs_of
from cluster.schedulers.jobs import RUN, QueuedJob, job_words, jobs_of_rule, jobs_of_submissions, mark_of
from cluster.types import Holder
from workflow.commands.watching.live_table import Active, Ended, StudyState
from workflow.dag import cell_needs, queue_view
from workflow.run.record.events import SHORT_BYTES, messages
from workflow.run.record.machine_load import together
from workflow.run.record.model import RunRecord
from workflow.run.record.progress_line import STATUS as WAITING
from workflow.run.record.progress_line import waiting_reason
from workflow.run.record.rate import NOT_COMPARED
from workflow.run.record.reading import FoundRecord, find_record, record_of
from workflow.run.storage.results import parse_requested
from workflow.study import next_command, paths, series
from workflow.study.cell import Run, datasets_of
from workflow.study.study import Study

# The state of each run, by the files on storage.


STATES: Final = ("done", "failed", "prevented", "running", "queued", "missing")
Alive = Callable[[Holder], bool | None]
MAX_REASON: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """The state of one run.

    `state` is one of STATES; `status` the record's own word. Done and failed have a published record, which is what snakemake sees. Queued:
    a job for it is in the scheduler's queue, or has begun and said nothing yet.
    """

    run: Run
    state: str
    status: str | None = None
    reason: str | None = None
    attempt: int | None = None
    log: str | None = None
    checkpoint_step: int | None = None
    """The step at which the next attempt goes on."""

    @property
    def to_run(self) -> bool:
        """Return True if `snakemake` would run it now."""
        return self.state not in ("done", "failed")


def run_states(study: Study, alive: Alive = holder_alive) -> tuple[RunState, ...]:
    """Return the state of every run, in the study's order.

    `alive` tells whether the holder of a lease lives. Runs that were never started cost two listings in all, each of the others a few small
    reads. A run that was refused at its start has a log and nothing else.
    """
    logs = {parse_requested(name.removesuffix(".log"))[0] for name in _names(study.results_dir / "logs")}
    started = _names(study.results_dir / "runs") | logs
    results = study.results_dir
    return tuple(state_of(results, run, alive) if run.run_id in started else RunState(run=run, state="missing") for run in study.runs)


def counts(states: Iterable[RunState]) -> dict[str, int]:
    """Count the runs in each state, all states named."""
    found = Counter(state.state for state in states)
    return {state: found[state] for state in STATES}


def state_of(results: Path, run: Run, alive: Alive = holder_alive) -> RunState:
    """Return the state of one run."""
    run_dir = paths.run_dir(results, run.run_id)
    holder = _holder(run_dir, alive)
    if holder is not None:
        return RunState(run=run, state="running", reason=holder, log=_supervisor_log(results, run.run_id))
    published = (run_dir / "record.json").exists()
    found = find_record(str(run_dir.parent), run.run_id)
    record, problem = _read_record(found, run, results.name)
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


def _read_record(found: FoundRecord, run: Run, study: str) -> tuple[RunRecord | None, str]:
    try:
        return (None if found.content is None else record_of(found.content, run.run_id, study=study)), "it is gone"
    except RecordError as error:
        return None, str(error)


def _from_record(run: Run, record: RunRecord, run_dir: Path, published: bool) -> RunState:
    status, attempt = record.status, record.attempt
    doubts = [one for one in record.warnings or () if one != NOT_COMPARED and one not in (record.busy or ())]
    earlier = record.resumed_from
    went_on = [] if earlier is None else [f"went on from attempt {earlier.attempt} at step {earlier.step}"]
    reason = record.status_reason or "; ".join([*doubts, *went_on, *together(record.busy or ())])
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
    )


def _holder(run_dir: Path, says: Alive) -> str | None:
    """Describe who holds the run now, or return None when nobody does. A holder that cannot be checked counts as alive, as for a
    supervisor."""
    from workflow.run.storage.prepare import holder_words, lease_of

    lease = lease_of(run_dir)
    alive = None if lease is None else says(lease.holder)
    return None if lease is None or alive is False else holder_words(lease, alive)


def _why_missing(log: str | None) -> str:
    """Return why a run that was started could not begin, else the last that is known of it."""
    logged = [] if log is None else messages(Path(log))
    errors = [message for level, message in logged if level == "ERROR"]
    if errors:
        return errors[-1]
    return "started, and left no record" + (f"; its log ends with: {logged[-1][1]}" if logged else "")


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


STEPS: Final = ("image:", "preflight:", "stage:", "train:", "push:", "waiting for", "push failed: ", "publish failed: ")
"""The words with which a line of a supervisor's log begins that names the current step."""
HELD: Final = " is running already, "
"""The words by which a supervisor says that another one has the run."""
SILENT_S: Final = 10.0
"""A run that nobody holds, without a record or an error, has ended when its log did not grow for so long: storage may show files late."""
Stamp = tuple[int, int]


@dataclass(kw_only=True)
class _Seen:
    """The knowledge of a run that has begun. `key`: of the attempt that ended last; `ended`: how it ended, None while it runs."""

    begun: float
    stamp: Stamp | None = None
    changed: float = 0.0
    key: object = None
    ended: str | None = None
    active: Active | None = None


@dataclass
class Watch:
    """The watch on the requested results (see workflow.run.storage.results) of a study, made before the runs are started.

    `queue`: of the scheduler; each run is a job there, or all are in the one of the name `submission`.
    """

    study: Study
    requested: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    queue: queue_view.PolledQueue | None = None
    submission: str | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _took: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runs = {run.run_id: run for run in self.study.runs}
        self._runs: dict[str, Run] = {f"{name}.log": runs[parse_requested(name)[0]] for name in self.requested}
        self._words = series.words_of(self.study.cells, self.study.site, self.study.repeats)
        self._at_start = dict(self._logs())
        self._alive = holder_alive if self.queue is None else self.queue.alive
        self._view = queue_view.QueueView()
        offered = jobs_of(self.study.site.scheduler)
        self._server = "" if offered is None else offered.SERVER.name
        self._jobs: Mapping[str, QueuedJob] = {}
        self._mark = mark_of(self.study.name, str(self.study.results_dir))
        states = {state.run.run_id: state for state in run_states(self.study, self._alive)}
        requested = {run.run_id for run in self._runs.values()}
        self._before = {run_id: _key(states[run_id]) for run_id in requested}
        self._rest = Counter(state.state for run_id, state in states.items() if run_id not in requested)
        self._width = 1

    def look(self) -> StudyState:
        """Return the state of the study now. It reads storage, which may hang: call it in a thread that nothing waits for."""
        now = self.clock()
        if self.queue is not None:
            self._view = self.queue.view()
            self._jobs = {f"{name}.log": job for name, job in jobs_of_rule(self._view.jobs, self._mark, RUN).items()}
        logs = dict(self._logs())
        ended = [end for name in logs if name in self._runs and (end := self._look_at(name, logs[name], now)) is not None]
        queued = {name: job for name, job in self._jobs.items() if name in self._runs and self._is_queued(name, job)}
        seen = {name: seen for name, seen in self._seen.items() if name not in queued}
        ends = Counter(one.ended for one in seen.values() if one.ended is not None)
        active = tuple(one.active for one in seen.values() if one.active is not None)
        self._width = max(self._width, sum(not run.waits for run in active))
        return StudyState(
            total=len(self.study.runs),
            done=self._rest["done"] + ends["done"],
            failed=self._rest["failed"] + ends["failed"],
            prevented=ends["prevented"],
            active=active,
            ended=tuple(ended),
            before=(*(job_words(job, time.time()) for job in self._view.jobs if job.name == self.submission), *self._preparing()),
            queue=_queue(self.study, self.queue is not None and self.submission is None),
            queued=tuple((self._words(self._runs[name]), job_words(job, time.time())) for name, job in queued.items()),
            left_s=self._left_s(),
            silent_s=self._view.silent_s,
            server=self._server,
        )

    def jobs(self) -> tuple[QueuedJob, ...]:
        return () if self.queue is None else tuple(job for job in self.queue.view().jobs if job.mark == self._mark)

    # -- runs

    def _is_queued(self, name: str, job: QueuedJob) -> bool:
        """Return True if a run has not begun, or its job was put back into the queue.

        The answer of the queue may be older than what the log says.
        """
        seen = self._seen.get(name)
        if seen is None:
            return True
        return job.waits and seen.ended not in ("done", "failed") and self._view.known_since(seen.changed)

    def _logs(self) -> Iterator[tuple[str, Stamp]]:
        """Yield the names and stamps of the logs of the requested runs."""
        try:
            with os.scandir(self.study.results_dir / "logs") as entries:
                for entry in entries:
                    if entry.name in self._runs:
                        status = entry.stat()
                        yield entry.name, (status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return

    def _look_at(self, name: str, stamp: Stamp, now: float) -> Ended | None:
        run = self._runs[name]
        seen = self._seen.get(name)
        if seen is None:
            if self._at_start.get(name) == stamp:
                return None
            seen = self._seen[name] = _Seen(begun=now, key=self._before[run.run_id])
        if seen.ended in ("done", "failed") or (seen.ended is not None and seen.stamp == stamp):
            return None
        state = state_of(self.study.results_dir, run, self._alive)
        began_anew = seen.stamp is not None and stamp[1] < seen.stamp[1]
        if seen.stamp != stamp:
            seen.stamp, seen.changed = stamp, now
        if seen.ended is not None:
            if state.state != "running" and not began_anew:
                return None  # a last line after the record
            seen.ended, seen.begun = None, now
        return self._judge(name, run, seen, state, now)

    def _judge(self, name: str, run: Run, seen: _Seen, state: RunState, now: float) -> Ended | None:
        log = self.study.results_dir / "logs" / name
        logged = messages(log, SHORT_BYTES)
        if state.state in ("done", "failed", "prevented") and _key(state) != seen.key:
            seen.key = _key(state)
            return self._ended(run, seen, state.state, self._whole(_reason(state)), state.log)
        errors = [message for level, message in logged if level == "ERROR"]
        # A job that has written nothing may have begun, or wait in the queue once more.
        has_no_job = self.queue is None or (name not in self._jobs and self._view.known_since(seen.changed + SILENT_S))
        if state.state != "running" and (errors or (logged and now - seen.changed > SILENT_S and has_no_job)):
            reason = errors[-1] if errors else f"it ended without a record, after: {logged[-1][1]}"
            return self._ended(run, seen, "prevented", self._whole(reason), str(log))
        step = step_of(logged, run.run_id)
        if step.startswith("waiting"):
            seen.begun = now
        seen.active = Active(words=self._words(run), step=step, seconds=now - seen.begun)
        return None

    def _whole(self, reason: str | None) -> str | None:
        return None if reason is None else next_command.completed(reason, self.study.chosen_site, self.study.path)

    def _ended(self, run: Run, seen: _Seen, state: str, reason: str | None, log: str | None) -> Ended:
        seen.active, seen.ended = None, state
        seconds = self.clock() - seen.begun
        if state == "done":  # what a failed run took says nothing about the others
            self._took.setdefault(run.cell.cell_id, []).append(seconds)
        return Ended(words=self._words(run), state=state, seconds=seconds, reason=reason, log=log)

    # -- what is to come

    def _left_s(self) -> float | None:
        """Return the seconds until all runs have ended; None before one has ended well.

        A run takes what runs of its cell took, else what all took.
        """
        ended = list(chain.from_iterable(self._took.values()))
        if not ended:
            return None
        left, longest = 0.0, 0.0
        for name, run in self._runs.items():
            seen = self._seen.get(name)
            if seen is None or seen.ended is None:
                spent = 0.0 if seen is None or seen.active is None else seen.active.seconds
                one = max(0.0, fmean(self._took.get(run.cell.cell_id, ended)) - spent)
                left, longest = left + one, max(longest, one)
        return max(longest, left / self._width)

    def _preparing(self) -> Iterator[str]:
        """Yield what runs wait for that is not there yet, and how far it is."""
        open_runs = [run for name, run in self._runs.items() if (seen := self._seen.get(name)) is None or seen.ended is None]
        images = cell_needs.images_file(self.study) if open_runs else None
        if images is not None and not Path(images).exists():
            logged = messages(self.study.results_dir / "logs" / Path(images).with_suffix(".log").name, SHORT_BYTES)
            yield f"images: {logged[-1][1] if logged else 'wait to be pinned'}"
        for name in datasets_of(run.cell for run in open_runs):
            build = self.study.build_dir(name)
            try:
                there = set(os.listdir(build))
            except FileNotFoundError:
                there = set()
            if "dataset.json" not in there:
                yield f"dataset {name}: {_build_progress(there, self.study.datasets[name].shards)}"


def step_of(logged: Sequence[tuple[str, str]], run_id: str) -> str:
    """Return the step of a supervisor: its last message that names one, or an error, or says that another start has the run."""
    for level, message in reversed(logged):
        if level == "ERROR" or message.startswith(STEPS) or HELD in message:
            return message
        if message.startswith(f"{run_id}: attempt"):
            return "stage"
    return "starts"


def _build_progress(there: set[str], shards: int) -> str:
    if "plan.json" not in there:
        return "its source is listed"
    return f"{sum(name.startswith('shard-') and name.endswith('.json') for name in there)} of {shards} shards built"


def _queue(study: Study, own_jobs: bool) -> str:
    offered = jobs_of(study.site.scheduler)
    if offered is None:
        return "one run at a time measures on this machine"
    return f"not in {offered.SERVER.title}'s queue yet" if own_jobs else "for nodes of this job"


def _key(state: RunState) -> object:
    return None if state.state in ("missing", "running") else (state.attempt, state.status)


def _reason(state: RunState) -> str | None:
    return state.reason if state.status in (None, "ok") or state.reason is None else f"{state.status}: {state.reason}"


# The runs in the scheduler's queue, for commands that look at a study from outside.


QUEUE_ANSWER_S: Final = 4.0
"""The seconds that the queue may take to answer, and as long for all holders: people wait for the command."""
UNKNOWN: Final = "whether runs wait in its queue, and whether those that run still live, is not known"


def study_states(study: Study) -> tuple[tuple[RunState, ...], str]:
    """Return the states of a study's runs, by storage and by the scheduler, within seconds also where that is silent.

    The text says why they are incomplete, and is empty where they are complete.
    """
    name = study.site.scheduler
    offered = jobs_of(name)
    if offered is None:
        return run_states(study), ""
    try:
        jobs = offered.our_jobs(0.0, QUEUE_ANSWER_S)
    except SchedulerOutputError as error:
        how = "does not answer now" if isinstance(error, SchedulerSilent) else "cannot be asked from here"
        return run_states(study, _elsewhere(name)), f"{offered.SERVER.name} {how}: {UNKNOWN}"
    return with_queue(run_states(study, _within_limit(get_scheduler(name), jobs)), study, jobs, time.time()), ""


def with_queue(states: Sequence[RunState], study: Study, jobs: Sequence[QueuedJob], now: float) -> tuple[RunState, ...]:
    """Return the states, where runs with neither result nor holder are queued if they have a job, their own or the whole study's, and
    where a node that does not answer is named for a run whose job the scheduler keeps.
    """
    own = {parse_requested(name)[0]: job for name, job in jobs_of_rule(jobs, mark_of(study.name, str(study.results_dir)), RUN).items()}
    whole = next(iter(jobs_of_submissions(jobs, study.name)), None)
    found = []
    for state in states:
        job = own.get(state.run.run_id)
        holding = job or whole
        if state.state == "running" and holding is not None and holding.lost:
            state = replace(state, reason=f"{state.reason}; {holding.lost} does not answer")
        if state.state not in ("missing", "prevented") or holding is None:
            found.append(state)
            continue
        words = job_words(job, now) if job is not None else _submission_text(holding, now)
        found.append(replace(state, state="queued", status=None, reason=words))
    return tuple(found)


def _submission_text(job: QueuedJob, now: float) -> str:
    words = job_words(job, now)
    return words if job.waits else f"{words}; the run has not begun in it"


def _elsewhere(silent: str) -> Alive:
    return lambda holder: None if holder.scheduler == silent else holder_alive(holder)


def _within_limit(scheduler: Scheduler, jobs: Sequence[QueuedJob]) -> Alive:
    """Return a check of holders within a time limit: the queue has answered for our jobs; the scheduler is queried for each other."""
    living = {(job.job_id, job.restarts) for job in jobs if not job.waits}
    give_up = time.monotonic() + QUEUE_ANSWER_S

    def alive(holder: Holder) -> bool | None:
        if holder.scheduler != scheduler.NAME:
            return holder_alive(holder)
        if (holder.job_id, holder.restart_count) in living:
            return True
        left = give_up - time.monotonic()
        return scheduler.holders_alive((holder,), left)[0] if left > 0 else None

    return alive
