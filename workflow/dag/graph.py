"""Tell the Snakefile which runs are left, their files and resources, at a cost of next to nothing per job."""

import hashlib
import inspect
import logging
import os
import re
import shlex
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from base import calls, errors, jsonfile, process
from cluster import machine, schedulers
from cluster.schedulers.jobs import mark_of
from data_prep.spec import DatasetSpec
from workflow.dag import cell_needs, job_plans
from workflow.dag.execution import NODES, SUBMITS, Mode, Way, jobs_at, refuse_wrong_executor
from workflow.dag.storage_view import PublishedResult, StorageView, look_at_storage, results_in
from workflow.report.files import PLOT_FILES, TABLE_FILES
from workflow.run.record.walltime_budget import MIN_MARGINS, margin_of
from workflow.run.storage.results import parse_requested, requested_result
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.publishing import STORAGE_S, origin_of, publish_content, resolved_study
from workflow.study.series import stage_words, train_words, words_of
from workflow.study.study import Study

# The resources of Snakemake's rules.


def resources_of_runs(study: Study, way: Way) -> dict[str, object]:
    """Return the resources of the rule whose jobs are runs.

    They are values where all cells agree, and functions of the wildcards where they do not. On this machine a run requests none.
    """
    if way == "local":
        return {}
    of_cell = {cell.cell_id: _of_cell(study, way, cell) for cell in study.cells}
    of_run = {run.run_id: of_cell[run.cell.measured_id] for run in study.runs}
    names = next(iter(of_cell.values()))
    found: dict[str, object] = {}
    for name in names:
        values = {requested[name] for requested in of_cell.values()}
        if len(values) > 1:
            found[name] = _lookup(lambda run_id, name=name: of_run[run_id][name])  # type: ignore[misc]
        elif values != {None}:
            found[name] = values.pop()
    return found


def resources_of_shards(study: Study, way: Way) -> dict[str, object]:
    """Return the resources of the rule that builds shards, which has jobs of its own only where each run is one."""
    if way != "jobs":
        return {}
    requested = job_plans.resources_of(job_plans.shard_size(study.site))
    return {name: value for name, value in requested.items() if value is not None}


def shard_threads(way: Way, cores: int | None, host_cores: int) -> int:
    """Return the threads that a shard is counted with, so that as many shards run at once as this host has cores."""
    return max(1, (cores or 1) // host_cores) if way == "allocation" else 1


def _of_cell(study: Study, way: Way, cell: Cell) -> job_plans.Resources:
    if way == "allocation":
        return {NODES: cell.nodes}
    return job_plans.resources_of(job_plans.run_size(cell, study.site, study.limits.walltime_s))


# The end of a study in time.


logger = logging.getLogger(__name__)
PATIENCE_S = 3600.0


def watch_deadline(jobs: schedulers.Jobs, environ: Mapping[str, str], least_s: float) -> None:
    """Send this process SIGTERM, by which Snakemake starts no more runs, when the job that `environ` is of ends in `least_s`. It runs in a
    thread. A run that starts later is refused by its supervisor; one by one, that would take long where many are left."""
    try:
        end = jobs.end_of_job(environ, PATIENCE_S)
    except errors.SchedulerOutputError as error:
        logger.warning("the end of this job is not known: %s; runs are started until it ends, and the last ones may be cut off", error)
        return
    if end is None:
        return
    left = end - least_s - time.time()
    if left > 0:
        threading.Event().wait(left)
    logger.warning("the job ends in %.0f s: no more runs are started in it", end - time.time())
    os.kill(os.getpid(), signal.SIGTERM)


# The graph.


class Descriptions:
    """What runs do, by their names in a message: `{descriptions:{wildcards.run}}`. As a param each job of a plan would ask for it, as a
    message only those that are printed do."""

    def __init__(self, describe: Callable[[str], str]) -> None:
        self._describe = describe

    def __format__(self, run: str) -> str:
        return self._describe(parse_requested(run)[0])


RECEIPTS_DIR: Final = Path(".snakemake", "slipway-receipts")
"""The outputs of runs that Snakemake sees. It deletes outputs before a job and after a failed one, and must delete no record."""
T = TypeVar("T")


class Graph:
    """The lookups of one study.

    `wildcards` is what Snakemake hands to an input, params or priority function; its `run` is the requested result of a run
    (workflow.run.storage.results), and stays that in the job, whatever happens meanwhile. A finished run is a job whose receipt is there.
    """

    def __init__(self, study: Study, retry_failed: bool, mode: Mode | None = None, *, adopt: bool = False) -> None:
        self.study = study
        self.retry_failed = retry_failed
        self.adopt = adopt
        self.mode = mode or Mode()
        self.storage_s = STORAGE_S
        self.results_dir = str(study.results_dir)
        self.datasets_dir = str(study.datasets_dir)
        self.shared_by_group = study.site.shared == "group"
        self.group_option = " --group" if self.shared_by_group else ""
        place = hashlib.sha256(self.results_dir.encode()).hexdigest()[:8]
        self.receipts_dir = str(RECEIPTS_DIR / f"{study.name}-{place}")
        self.outdated_dir = f"{self.receipts_dir}.outdated"
        self.outdated: list[str] = []
        self._order = {run.run_id: len(study.runs) - index for index, run in enumerate(study.runs)}
        build_dirs = {name: study.build_dir(name) for name in datasets_of(study.cells)}
        manifests = {name: f"{path}/dataset.json" for name, path in build_dirs.items()}
        self._manifest_of = {run.run_id: manifests[run.cell.dataset] for run in study.runs if run.cell.dataset in manifests}
        self._built: set[str] = set()
        self._datasets: dict[str, tuple[str, DatasetSpec]] = {path.name: (name, study.datasets[name]) for name, path in build_dirs.items()}
        self.data_priority = len(study.runs) + 1
        self.dataset_of = _lookup(self._dataset_of)
        self.priority_of = _lookup(self._order.__getitem__)
        """The place in the study's order, in which runs start: shuffled within each repeat, one repeat after the other."""
        runs = {run.run_id: run for run in study.runs}
        words = words_of(study.cells, study.site, study.repeats)
        self.descriptions = Descriptions(lambda run_id: self._describe(runs[run_id], words))
        self.run_resources = resources_of_runs(study, self.mode.way)
        self.shard_resources = resources_of_shards(study, self.mode.way)
        self.html_tables = self._results(name for name in TABLE_FILES if name.endswith(".html"))
        self.other_tables = self._results(name for name in TABLE_FILES if not name.endswith(".html"))
        self.plots = self._results(name for name in PLOT_FILES if name.endswith(".svg"))
        self.plot_specs = self._results(name for name in PLOT_FILES if not name.endswith(".svg"))

    def _describe(self, run: Run, words: Callable[[Run], str]) -> str:
        """Say what a run does, and what its job requests: `run lenet, 2 nodes: stage ...; train ...; push (job: nodes=2 gpus=8)`."""
        wildcards = SimpleNamespace(run=run.run_id)
        requested = {name: value(wildcards) if callable(value) else value for name, value in self.run_resources.items()}
        job = " ".join(f"{name}={value}" for name, value in requested.items() if value is not None)
        stage, train = stage_words(run.cell), train_words(run.cell, self.study.site)
        return f"run {words(run)}: stage {stage}; {train}; push{f' (job: {job})' if job else ''}"

    def _results(self, names: Iterable[str]) -> list[str]:
        return [f"{self.results_dir}/{name}" for name in names]

    @cached_property
    def digest(self) -> str:
        """Return a digest of the resolved study: when it changes, tables are made anew, even if no run is."""
        return hashlib.sha256(jsonfile.canonical_json(resolved_study(self.study))).hexdigest()[:16]

    @cached_property
    def _finished(self) -> dict[str, PublishedResult]:
        """Read the published records. Raises StorageError where storage does not answer."""
        what, names = f"the records of {self.study.name}", list(self._order)
        found: dict[str, PublishedResult] = calls.call_isolated(what, results_in, self.results_dir, names, timeout_s=self.storage_s)
        return found

    @property
    def dataset_of_runs(self) -> Any:
        """Return `dataset_of`, or the file itself where all runs depend on the same one: Snakemake takes less time for it than for the
        call of a function per run."""
        files = {tuple(file) if isinstance(file, list) else file for file in map(self._dataset_of, self._order)}
        return self.dataset_of if len(files) != 1 else files.pop()

    def _dataset_of(self, run_id: str) -> str | list[str]:
        """Return the dataset file that a run depends on, or [] if it has no dataset, or is done and the file is missing: otherwise
        Snakemake would build the dataset and repeat the run."""
        manifest = self._manifest_of.get(run_id)
        return [] if manifest is None or (self._is_done(run_id) and manifest not in self._built) else manifest

    def _is_done(self, run_id: str) -> bool:
        end = self._finished.get(run_id)
        return end is not None and not (self.retry_failed and end["status"] != "ok")

    @cached_property
    def staged(self) -> Any:
        """Return an input function for runs inside of one job: all its nodes must hold all their datasets; an empty list if none is needed.

        All datasets, because staging takes every node: a dataset that came later would wait for a moment in which no run is there.
        """
        if self.mode.way != "allocation" or self.mode.nodes in (None, 1):
            return []
        names = [self.study.build_dir(name).name for name in datasets_of(run.cell for run in self.runs_to_make)]
        files = self._results(f"staged/{self.mode.job}/{name}.json" for name in names)
        return _lookup(lambda run_id: [] if self._is_done(run_id) else files)

    @cached_property
    def images_file(self) -> str | None:
        """Return the path of the file to which the study's images were pinned, or None for the bare engine."""
        return cell_needs.images_file(self.study)

    @cached_property
    def images(self) -> Any:
        """Return the input function for runs that are containers, or an empty list."""
        file = self.images_file
        return [] if file is None else _lookup(lambda run_id: [] if self._is_done(run_id) else file)

    @property
    def images_option(self) -> str:
        """Return the option of the supervisor's command that names the images."""
        return "" if self.images_file is None else f" --images {shlex.quote(self.images_file)}"

    def receipts_of(self, wildcards: Any) -> list[str]:
        """Return the receipts of a dataset's shards, whose number is in the specification."""
        _, spec = self._datasets[wildcards.dataset]
        return [f"{self.datasets_dir}/.build/{wildcards.dataset}/shard-{index:05d}.json" for index in range(spec.shards)]

    def dataset_pattern(self, *, without_built: bool) -> str:
        """Return the pattern of the names of datasets; `without_built`: it matches none that is built."""
        built = sorted(re.escape(Path(path).parent.name) for path in self._built) if without_built else []
        return (f"(?!(?:{'|'.join(built)})/)" if built else "") + "[a-z0-9][a-z0-9._-]*-[0-9a-f]{12}"

    def description_of_shard(self, wildcards: Any) -> str:
        """Describe the job of a shard, for its message."""
        _, spec = self._datasets[wildcards.dataset]
        if not spec.is_tree:
            return f"read and encode samples -> shard {wildcards.shard} on storage"
        return f"hash part {wildcards.shard} of {spec.path} where it lies"

    def name_of(self, wildcards: Any) -> str:
        """Return the study's own name of a dataset."""
        return self._datasets[wildcards.dataset][0]

    def spec_of(self, wildcards: Any) -> str:
        """Return the dataset's specification as JSON text, for the command that lists the source."""
        return jsonfile.canonical_json(self._datasets[wildcards.dataset][1].to_json()).decode()

    def _receipt(self, run_id: str) -> str:
        """Return the receipt of a run's requested result: the one that is there, any if there is none, with `retry=failed` a later one."""
        end = self._finished.get(run_id)
        number = end["result_number"] if end else 0
        return f"{self.receipts_dir}/{requested_result(run_id, max(0, number - 1) if self._is_done(run_id) else number)}"

    @cached_property
    def receipts(self) -> list[str]:
        """Return the receipts of all runs.

        They are targets too, since Snakemake makes no missing file for the sake of one that is there, as records.parquet may be.
        """
        return [self._receipt(run.run_id) for run in self.study.runs]

    @property
    def requested(self) -> list[str]:
        """Return the requested results of the runs to make, which are the names of their receipts."""
        return [Path(self._receipt(run.run_id)).name for run in self.runs_to_make]

    @cached_property
    def records(self) -> list[str]:
        """Return the records of the runs that are done: tables are made anew when one is newer than they are."""
        return [str(self.study.record_path(run.run_id)) for run in self.study.runs if self._is_done(run.run_id)]

    def see_storage(self, before_runs: bool) -> None:
        """Look once at storage, in a child with a time limit.

        Raises ConfigError when the results are those of another study file, StorageError where storage hangs. `before_runs`: as Snakemake
        is to make what is missing, receipts and tables are looked at too.

        A run that is done has a receipt then, whoever made its result, and a receipt whose result somebody removed is dropped. Receipts are
        listed before records are read: a result that came between the two is younger than its record. What Snakemake remembers of the
        study lies where it works, which is another directory for `slipway run`. Tables of another version of the study are made anew: they
        depend on a file that is named by when they were made, and so is newer than they are.
        """
        directory = Path(self.receipts_dir)
        receipts = os.listdir(directory) if before_runs and directory.is_dir() else []
        what, digest = f"the results of {self.study.name}", self.digest if before_runs else None
        manifests = sorted(set(self._manifest_of.values()))
        arguments = (self.results_dir, list(self._order), manifests, origin_of(self.study, self.adopt), digest)
        seen: StorageView = calls.call_isolated(what, look_at_storage, *arguments, timeout_s=self.storage_s)
        self._finished, self._built = seen["results"], set(seen["built"])
        if before_runs:
            self._keep_receipts(directory, receipts)
        if seen["outdated"] is not None:
            self.outdated = [_touched(Path(self.outdated_dir, str(seen["outdated"])))]

    def _keep_receipts(self, directory: Path, receipts: Iterable[str]) -> None:
        done = {Path(self._receipt(run_id)).name for run_id in self._finished if self._is_done(run_id)}
        for name in set(receipts) - done:
            run_id, after = parse_requested(name)
            end = self._finished.get(run_id)
            if end is None or end["result_number"] <= after:
                (directory / name).unlink(missing_ok=True)
        for name in done.difference(receipts):
            _touched(directory / name)

    def run_threads(self, cores: int | None) -> int:
        """Return the threads of a run: all cores on this machine, since nothing may run beside a measurement, else 1, as the job has its
        nodes."""
        return (cores or 1) if self.mode.way == "local" else 1

    def shard_threads(self, cores: int | None) -> int:
        """Return the threads of a shard, so that as many are built at once as this machine has cores."""
        return shard_threads(self.mode.way, cores, len(machine.usable_cores()))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that Snakemake's environment gains: where our modules are, and whose jobs it submits."""
        ours = process.packages_environ(environ)
        if self.mode.way == "jobs":
            ours[SUBMITS] = f"{self.study.site.scheduler} {mark_of(self.study.name, self.results_dir)}"
        return ours

    def start(self, executor: str) -> None:
        """Prepare for the first job.

        Refuse an executor that is not the profile's, write the resolved study, from which supervisors and tables read, check that storage
        has the images that runs load, and look at the clock of the job that Snakemake runs in.
        """
        refuse_wrong_executor(self.mode.way, executor)
        self.publish_study()
        if self.images_file is not None and self.runs_to_make:
            from workflow.run.images import check_archives

            what, storage = f"the archives of the images of {self.study.name}", str(self.study.site.storage)
            calls.call_isolated(what, check_archives, self.images_file, storage, timeout_s=self.storage_s)
        if self.mode.way == "allocation":
            site = self.study.site
            margin = margin_of(site.deadline_margin_s, self.study.limits.walltime_s, site.walltime_s)
            arguments = (jobs_at(site), dict(os.environ), MIN_MARGINS * margin)
            threading.Thread(target=watch_deadline, args=arguments, name="deadline", daemon=True).start()
        if self.study.notify is not None and "failure" in self.study.notify.when:
            from workflow.dag.notify import watch_failures

            watch_failures(self.study.notify, Path(self.results_dir), [run.run_id for run in self.runs_to_make])

    def publish_study(self) -> None:
        """Write study.json, where it says something else. Raises ConfigError, RecordError, StorageError."""
        what, content = f"study.json of {self.study.name}", resolved_study(self.study)
        arguments = (self.results_dir, content, self.study.text, origin_of(self.study, self.adopt))
        calls.call_isolated(what, publish_content, *arguments, timeout_s=self.storage_s)

    @property
    def runs_to_make(self) -> list[Run]:
        """Return the runs that Snakemake would start."""
        return [run for run in self.study.runs if not self._is_done(run.run_id)]

    def counts(self) -> tuple[Counter[str], int]:
        """Count the results of each status, and the runs that have none. Raises StorageError."""
        self.__dict__.pop("_finished", None)
        ends = Counter(record["status"] for record in self._finished.values())
        return ends, len(self.study.runs) - sum(ends.values())

    def unmet(self, requested: Iterable[str]) -> list[str]:
        """Return the runs without their requested result, of those that `requested` names like receipts. Raises StorageError."""
        self.counts()
        parsed = (parse_requested(name) for name in requested)
        return [run_id for run_id, after in parsed if run_id not in self._finished or self._finished[run_id]["result_number"] <= after]

    def without_result(self) -> list[str]:
        """Return the runs without a result, as the last `counts` saw it."""
        return [run_id for run_id in self._order if run_id not in self._finished]


def _touched(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def _lookup(function: Callable[[str], T]) -> Callable[[Any], T]:
    """Return a function of wildcards. It holds its signature: Snakemake asks several times per job, which costs more than the look-up."""

    def call(wildcards: Any) -> T:
        return function(parse_requested(wildcards.run)[0])

    call.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return call
