"""What cannot run is refused once, before anything starts: by `slipway plan`, `run` and `submit`, and by Snakemake, with the same error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Final

from base.errors import ConfigError, ContainerError, NoScheduler, SchedulerOutputError, SlipwayError, StagingError, UnsupportedRequest
from base.limited import call_limited
from base.units import counted
from cluster.detection import scheduler_of
from cluster.schedulers import get_scheduler, jobs_of
from cluster.schedulers.local import NAME as LOCAL
from containers.engines import ONLY_UNDER, get_engine, in_container
from containers.frameworks import load_framework
from containers.frameworks.environment import what_is_missing
from containers.images.commands import why_silent
from data_prep.doctor.cache import check_way
from workflow.dag.cost import refuse_over_budget
from workflow.dag.image_file import refuse_missing_credentials
from workflow.dag.job_size import refuse_owned_directives
from workflow.dag.queue_view import QUEUE_S
from workflow.dag.requirements import DatasetRequirements, dataset_needs
from workflow.dag.source_paths import refuse_missing_sources
from workflow.dag.storage_place import refuse_too_little_space, refuse_unusable_storage
from workflow.run.framework import of_program
from workflow.run.node import startable
from workflow.run.node.caches import cache_or_none
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.explain import some
from workflow.study.origin import STORAGE_S
from workflow.study.site import Site, device_of, refuse_foreign_scheduler
from workflow.study.study import Study

REPORT: Final = ("polars", "pyarrow", "altair", "vl_convert", "jinja2", "scipy", "pygments")
"""The modules of the extra `report`."""


def refuse_site(study: Study, environ: Mapping[str, str]) -> None:
    """Raise UnsupportedRequest or ConfigError for a site on which nothing can run from here."""
    get_scheduler(study.site.scheduler)
    get_engine(study.site.engine)
    _refuse_engine_of_another_scheduler(study.site)
    refuse_foreign_scheduler(study.site, environ)
    refuse_owned_directives(study.site)


def _refuse_engine_of_another_scheduler(site: Site) -> None:
    needed = ONLY_UNDER.get(site.engine, site.scheduler)
    if site.scheduler != needed:
        raise UnsupportedRequest(
            f"site {site.name}: engine {site.engine} is part of the scheduler {needed}, whose steps become containers; found scheduler: "
            f"{site.scheduler}; `slipway doctor` says which engines work here"
        )


def refuse_missing_report() -> None:
    """Raise UnsupportedRequest where the libraries of tables, plots and report are not installed."""
    missing = [name for name in REPORT if find_spec(name) is None]
    if missing:
        raise UnsupportedRequest(
            f"tables, plots and report need {', '.join(missing)}, not installed in {sys.prefix}: install the extra `report` of this "
            "installation (docs/installing.md): pip install polars pyarrow altair vl-convert-python jinja2 scipy pygments"
        )


def refuse_unreachable(site: Site, environ: Mapping[str, str]) -> None:
    """Raise NoScheduler where jobs are to be submitted and this machine cannot ask the scheduler. One that is silent, or answers what
    nobody can read, is asked again later, by those who wait for it."""
    jobs = jobs_of(site.scheduler)
    if jobs is None or scheduler_of(environ) == site.scheduler:
        return
    try:
        jobs.our_jobs(0.0, QUEUE_S)
    except NoScheduler:
        raise
    except (SchedulerOutputError, ValueError):
        return


def refuse_runs(study: Study, runs: Sequence[Run], environ: Mapping[str, str], *, ask_scheduler: bool = False) -> None:
    """Raise all that stands in the way of `runs`, those still to be made, or of their report, as one error of the class of the first:
    StorageError, ConfigError, UnsupportedRequest, AllocationError, ContainerError, StagingError, NotEnoughSpace or NoScheduler.
    `ask_scheduler`: whether one that this machine cannot ask stands in the way."""
    checks: list[Callable[[], object]] = [refuse_missing_report, partial(refuse_over_budget, study, runs)]
    if runs:
        what = f"what the runs of {study.name} need"
        checks.append(partial(call_limited, what, _refuse_needs, study, runs, environ, timeout_s=STORAGE_S))
        if ask_scheduler:
            checks.append(partial(refuse_unreachable, study.site, environ))
    refuse_unusable_storage(study)
    _raise_all(checks)


def _raise_all(checks: Iterable[Callable[[], object]]) -> None:
    """Call every check. Raise one error of what they raise, of the class of the first."""
    errors: list[SlipwayError] = []
    for check in checks:
        try:
            check()
        except SlipwayError as error:
            errors.append(error)
    if errors:
        raise type(errors[0])("\n".join(dict.fromkeys(map(str, errors))))


def _refuse_needs(study: Study, runs: Sequence[Run], environ: Mapping[str, str]) -> None:
    """Refuse runs that lack something. Sources and environments may lie on network storage, so a child with a time limit calls it."""
    cells = list({run.cell.cell_id: run.cell for run in runs}.values())
    _raise_all(
        (
            lambda: refuse_missing_credentials(study.site),
            lambda: _refuse_datasets(study, cells),
            lambda: _refuse_silent_engine(study.site),
            lambda: _refuse_missing_environments(study, cells, environ),
            lambda: _refuse_missing_packages(study, cells, environ),
            lambda: _refuse_open_cache(study.site),
            lambda: _refuse_missing_gpus(study, cells, environ),
        )
    )


def _refuse_datasets(study: Study, cells: Sequence[Cell]) -> None:
    refuse_missing_sources(study, datasets_of(cells))
    needs = [dataset_needs(study, name) for name in datasets_of(cells)]
    _raise_all((lambda: refuse_too_little_space(study, needs, cells), lambda: _refuse_large_batches(study, cells, needs)))


def _refuse_open_cache(site: Site) -> None:
    """Raise StagingError where this machine is the node and somebody else could change what its cache holds, as the run would."""
    if site.scheduler == LOCAL and (cache := cache_or_none(site)) is not None:
        for finding in check_way(cache / f"{LOCAL}-0", group=site.shared == "group"):
            raise StagingError(f"{finding.text}; {finding.advice}")


def _refuse_silent_engine(site: Site) -> None:
    """Raise ContainerError where this machine is the node and its engine does not answer. What the site's setup brings is not known."""
    if site.scheduler == LOCAL and in_container(site.engine) and not site.setup and (why := why_silent(site.engine)):
        raise ContainerError(f"site {site.name}: engine {site.engine} cannot be used: {why}; start it, or choose another engine")


def _refuse_missing_environments(study: Study, cells: Sequence[Cell], environ: Mapping[str, str]) -> None:
    """Frameworks whose packages are not installed here, where neither an image nor the site's setup brings them; or whose launcher is not,
    where this machine is the node."""
    if in_container(study.site.engine) or study.site.setup:
        return
    asked = sorted({(cell.framework, cell.strategy, cell.backend) for cell in cells if cell.program is None})
    missing = [why for name, *words in asked if (why := what_is_missing(load_framework(name), *words))]
    if study.site.scheduler == LOCAL:
        names = sorted({name for name, *_ in asked})
        missing += [why for name in names if (why := startable.why_no_mpirun(name, load_framework(name).launcher, environ))]
    if missing:
        raise ConfigError("\n".join(f"{study.path}: {why}" for why in missing))


def _refuse_missing_packages(study: Study, cells: Sequence[Cell], environ: Mapping[str, str]) -> None:
    """Programs of the study that this machine cannot start, where it is the node; elsewhere those that Slipway's own interpreter cannot
    run, which all nodes have. What the site's setup brings is not known here."""
    site = study.site
    if site.setup:
        return
    local, contained = site.scheduler == LOCAL, in_container(site.engine)
    programs = {cell.framework: cell.program for cell in cells if cell.program is not None and (local or not contained)}
    for program in (of_program(programs[name]) for name in sorted(programs)):
        why = None
        if local:
            why = startable.what_is_missing(program, environ, contained=contained)
        elif program.bare_python is None:
            why = startable.why_packages_differ(program)
        if why is not None:
            raise ConfigError(f"{study.path}: {why}")


def _refuse_large_batches(study: Study, cells: Sequence[Cell], datasets: Sequence[DatasetRequirements]) -> None:
    """A global batch that no training split of the dataset can fill: such a run would end at its first step."""
    for needs in datasets:
        name, most = needs.name, needs.most_train_samples
        large = [cell for cell in cells if cell.dataset == name and most is not None and cell.global_batch_size > most]
        if large:
            about = "about " if needs.root is None else ""
            batch = max(cell.global_batch_size for cell in large)
            raise ConfigError(
                f"{study.path}: {counted(len(large), 'cell')} cannot run: a global batch of {batch} is more than the "
                f"{about}{needs.train_samples} training samples of {name}; take smaller batches or fewer nodes, exclude these cells "
                f'(exclude: ["global_batch_size > {needs.train_samples}"]), or give more samples: {some(cell.cell_id for cell in large)}'
            )


def _refuse_missing_gpus(study: Study, cells: Sequence[Cell], environ: Mapping[str, str]) -> None:
    """What the largest run with GPUs would be refused with when it starts, where its nodes are known before: on this machine."""
    on_gpus = [cell for cell in cells if device_of(cell.device, study.site) == "cuda"]
    if on_gpus:
        from workflow.run.plan import allocation_request

        largest = max(on_gpus, key=lambda cell: cell.world_size)
        request = allocation_request(largest, study.cells, study.site)
        get_scheduler(study.site.scheduler).planned(request, environ)
