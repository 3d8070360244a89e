"""The plan of a whole study as one value: cells and runs, what they need and cost, how they scale. Reads files, writes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from base.command import run as run_command
from base.errors import ConfigError, SchedulerSilent, SlipwayError
from base.units import counted, format_size, some
from base.userpath import variables_of
from cluster.detection import of_a_job
from cluster.machine import memory_bytes, usable_cores
from cluster.schedulers import jobs_of, local
from workflow.commands.accepted import problem_of_runs
from workflow.commands.watching.queued_runs import standing
from workflow.commands.watching.state import RunState, counts
from workflow.dag.cost import hours_on
from workflow.dag.estimate import Estimate, Outlook, estimate_of, outlook_of
from workflow.dag.past_runs import past_runs
from workflow.dag.requirements import DatasetRequirements, dataset_needs, memory_of
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.next_command import command
from workflow.study.origin import refuse_foreign_results
from workflow.study.series import Series, series_of
from workflow.study.site import Site, device_of
from workflow.study.study import Study

GPU_MEMORY_QUERY: Final = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, kw_only=True)
class CellPlan:
    """`memory_bytes`: what a process needs at the least; `available_bytes`: its share of the device's memory. None: not known."""

    cell: Cell
    states: Mapping[str, int]
    memory_bytes: int | None
    available_bytes: int | None
    estimate: Estimate | None
    """What a run takes, by what runs took before."""

    @property
    def fits(self) -> bool | None:
        """Whether the device has the memory; None where one of the two is not known."""
        if self.memory_bytes is None or self.available_bytes is None:
            return None
        return self.memory_bytes <= self.available_bytes


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Everything that `slipway plan STUDY` says."""

    study: Study
    states: tuple[RunState, ...]
    cells: tuple[CellPlan, ...]
    datasets: tuple[DatasetRequirements, ...]
    series: tuple[Series, ...]
    notes: tuple[str, ...]
    staged_per_s: float | None
    """Bytes per second that a node got of a dataset in earlier runs; None where none of them tells it."""

    @property
    def gpu_hours(self) -> float:
        """The bound: walltime x GPUs of the runs that are still to be made."""
        return hours_on("cuda", self.study, self.to_run)

    @property
    def process_hours(self) -> float:
        """The same for runs on the CPU."""
        return hours_on("cpu", self.study, self.to_run)

    @property
    def outlook(self) -> Outlook:
        """What those runs will take, as far as anything is known."""
        return outlook_of(self.to_run, self.study.site, {cell.cell.cell_id: cell.estimate for cell in self.cells})

    @property
    def to_run(self) -> list[Any]:
        """The runs that snakemake would start."""
        return [state.run for state in self.states if state.to_run]


def plan_study(study: Study) -> StudyPlan:
    """Look at storage and this machine, and put the plan together."""
    found = standing(study)
    states = found.states
    by_cell: dict[str, list[RunState]] = {cell.cell_id: [] for cell in study.cells}
    for state in states:
        by_cell[state.run.cell.cell_id].append(state)
    datasets = {name: dataset_needs(study, name) for name in datasets_of(study.cells)}
    device_memory = {device: _memory_of(device, study) for device in {device_of(cell.device, study.site) for cell in study.cells}}
    pasts = past_runs(study.site.storage, study.cells)
    cells = []
    for cell in study.cells:
        need = memory_of(cell, datasets.get(cell.dataset))
        cells.append(
            CellPlan(
                cell=cell,
                states=counts(by_cell[cell.cell_id]),
                memory_bytes=None if need is None else need.total_bytes,
                available_bytes=_share(device_memory[device_of(cell.device, study.site)], cell, study),
                estimate=estimate_of(cell, device_of(cell.device, study.site), pasts),
            )
        )
    series = series_of(study.cells, study.baseline)
    return StudyPlan(
        study=study,
        states=states,
        cells=tuple(cells),
        datasets=tuple(datasets.values()),
        series=series,
        staged_per_s=median(rates) if (rates := [past.staged_per_s for past in pasts if past.staged_per_s is not None]) else None,
        notes=(
            *study.notes,
            *_cache_notes(study.site),
            *_engine_notes(states, study.site),
            *_owner_notes(study),
            *_content_notes(states, datasets),
            *_memory_notes(cells),
            *_core_notes(study),
            *_batch_notes(study.cells, datasets),
            *_series_notes(series),
            *([found.silence] if found.silent else _queue_notes(study, [state.run for state in states if state.to_run])),
        ),
    )


def nodes_of(plan: StudyPlan, dataset: str) -> int:
    """The most nodes of one run on that dataset: so many caches it fills at once."""
    return max(cell.cell.nodes for cell in plan.cells if cell.cell.dataset == dataset)


def nodes_staged(plan: StudyPlan, needs: DatasetRequirements) -> int | None:
    """How many of those nodes have it in their cache already; None where the nodes are other machines."""
    if plan.study.site.scheduler != local.NAME or needs.root is None:
        return None
    caches = [plan.study.site.cache.path / f"{local.NAME}-{node}" for node in range(nodes_of(plan, needs.name))]
    return sum((cache / "datasets" / needs.root.name).is_dir() for cache in caches)


def _cache_notes(site: Site) -> Iterator[str]:
    """Where the cache goes away with the job."""
    name = None if site.cache.place is None else of_a_job(variables_of(str(site.cache.path)))
    if name is not None:
        yield (
            f"cache.path {site.cache.path} goes away with the job (${name} is the job's own): nothing is kept between jobs, and each job "
            "stages its datasets again; one allocation for the study pays (`slipway submit`)"
        )


def _engine_notes(states: Sequence[RunState], site: Site) -> Iterator[str]:
    """Of runs that are done, and that this site would have made with another engine."""
    others = Counter(state.engine for state in states if state.state == "done" and state.engine not in (None, site.engine))
    for engine, count in others.items():
        yield (
            f"{counted(count, 'run')} of those done had engine {engine}, and this site has {site.engine}: a run is not made again for "
            "that; a copy of the study file with another name at `study:` has results of its own"
        )


def _owner_notes(study: Study) -> list[str]:
    try:
        return refuse_foreign_results(study)
    except ConfigError:  # the command raises it when the plan is printed
        return []


def _content_notes(states: Sequence[RunState], datasets: Mapping[str, DatasetRequirements]) -> Iterator[str]:
    """Runs that are done, and whose dataset had another content than the one that is built now."""
    for name, needs in datasets.items():
        digest = None if needs.root is None else needs.root.name.rsplit("-", 1)[1]
        of_it = (state.dataset for state in states if state.state == "done" and state.run.cell.dataset == name and state.dataset)
        others = [found for found in of_it if digest is not None and not found.startswith(digest)]
        if others:
            yield (
                f"{counted(len(others), 'run')} of those done trained on another content of dataset {name} than is built now (digest "
                f"{others[0][:12]}, now {digest}): a run is not made again for that, and tables mark what is made of both; a copy of the "
                "study file with another name at `study:` has results of its own"
            )


def _memory_of(device: str, study: Study) -> int | None:
    """Bytes of one node (CPU) or one GPU; of another machine only where the site file says it."""
    local = study.site.scheduler == "local"
    if device == "cpu":
        return study.site.memory_per_node_bytes or (memory_bytes() if local else None)
    return parse_gpu_memory(_gpu_memory_text()) if local else None


def _gpu_memory_text() -> str:
    try:
        return run_command(GPU_MEMORY_QUERY, timeout_s=30).stdout
    except SlipwayError:
        return ""


def parse_gpu_memory(text: str) -> int | None:
    """The least memory among the GPUs that nvidia-smi lists, in bytes."""
    sizes = [int(line) << 20 for line in text.split() if line.isdecimal()]
    return min(sizes, default=None)


def _share(total: int | None, cell: Cell, study: Study) -> int | None:
    """What one process of the cell may take: a GPU is its own; a node's memory is for all processes there, this machine's for all."""
    if total is None or device_of(cell.device, study.site) == "cuda":
        return total
    return total // (cell.world_size if study.site.scheduler == "local" else cell.gpus_per_node)


def _memory_notes(cells: Sequence[CellPlan]) -> list[str]:
    tight = [cell for cell in cells if cell.fits is False]
    if not tight:
        return []
    worst = max(tight, key=lambda cell: cell.memory_bytes or 0)
    need, have = format_size(worst.memory_bytes or 0), format_size(worst.available_bytes or 0)
    who = counted(len(tight), "cell needs", "cells need")
    return [f"{who} more memory than a process has, at the most {worst.cell.cell_id}: {need} of {have}; such runs end as `oom`"]


def _core_notes(study: Study) -> Iterator[str]:
    """Cells on the CPU whose nodes have fewer cores than their processes have threads, where the nodes are known."""
    site, largest = study.site, max(cell.nodes for cell in study.cells)
    here = len(usable_cores())
    cores = max(1, here // largest) if site.scheduler == local.NAME else site.cpus_per_node
    on_cpu = [cell for cell in study.cells if device_of(cell.device, site) == "cpu"]
    if site.scheduler == local.NAME and largest > here and on_cpu:
        yield f"{largest} nodes share the {counted(here, 'core')} of this machine: runs whose nodes share one are marked oversubscribed"
    few = [
        cell for cell in on_cpu if cores is not None and cell.gpus_per_node * (cell.threads if isinstance(cell.threads, int) else 1) > cores
    ]
    if few:
        yield (
            f"{counted(len(few), 'cell has', 'cells have')} more threads on a node than its {counted(cores or 0, 'core')}: such runs are "
            f"marked oversubscribed ({some([cell.cell_id for cell in few], 3)}); lower threads or gpus_per_node"
        )


def _batch_notes(cells: Sequence[Cell], datasets: Mapping[str, DatasetRequirements]) -> list[str]:
    """Batches that the training split may be too small for, which is seen when the dataset is built; what is certain is refused."""
    notes = []
    for name, needs in datasets.items():
        batch = max(cell.global_batch_size for cell in cells if cell.dataset == name)
        expected, most = needs.train_samples, needs.most_train_samples
        if expected is not None and most is not None and expected < batch <= most:
            notes.append(
                f"a global batch of {batch} may be more than the about {expected} training samples of {name}: such runs would fail"
            )
    return notes


def _queue_notes(study: Study, runs: Sequence[Run]) -> list[str]:
    """What the cluster that we are at will never start."""
    try:
        problem = problem_of_runs(study, runs) if jobs_of(study.site.scheduler) is not None else None
    except SchedulerSilent:
        return []
    return [f"{problem}: `{command(study)}` and `{command(study, 'submit')}` would refuse it"] if problem else []


def _series_notes(series: Sequence[Series]) -> list[str]:
    without = [one for one in series if not one.has_baseline]
    verb, whose = ("has", "its") if len(without) == 1 else ("have", "their")
    notes = [f"{len(without)} of {len(series)} series {verb} no baseline cell: {whose} speed-up is null"] if without else []
    notes += list(dict.fromkeys(one.obstacle for one in without if one.obstacle))[:3]
    if narrowed := [one for one in series if one.narrowed]:
        what = f"in {len(narrowed)} of {len(series)} series all cells have what the baseline names"
        notes.append(f"{what}: those with the fewest processes ({min(narrowed[0].world_sizes)}) are the baseline")
    unmatched = sum(one.unmatched for one in series if one.has_baseline)
    if unmatched:
        has, whose = ("cell has", "its") if unmatched == 1 else ("cells have", "their")
        notes.append(f"{unmatched:,} {has} neither the batch nor the global batch of a baseline cell: {whose} speed-up is null")
    return notes
