"""Refuse what cannot run before anything starts: `slipway plan`, `run` and `submit`, and Snakemake, give the same error."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from base import calls, errors
from base.humanize import choices, counted, format_size
from cluster import detection, schedulers
from cluster.schedulers.local import NAME as LOCAL
from containers.engines import ONLY_UNDER, get_engine, in_container
from containers.frameworks import load_framework, own_python
from containers.images.commands import why_silent
from data_prep import mounts
from data_prep.tree.manifest import advice
from workflow.dag import execution, queue_view
from workflow.dag.cell_needs import DatasetRequirements, refuse_over_budget, requirements_of
from workflow.dag.graph import Graph
from workflow.run.node import program_check
from workflow.run.plan import allocation_request, of_program
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.explain import first_names
from workflow.study.loader import parse_document
from workflow.study.publishing import STORAGE_S
from workflow.study.site import Site, device_of, refuse_other_scheduler
from workflow.study.study import Study, load_study

# The sources of datasets, and trees of files that are not what was hashed.


def missing_sources(study: Study, names: Iterable[str]) -> list[str]:
    """Return a line for each path that does not exist, of the datasets `names` that are still to be built, with its place in the study
    file."""
    lines = []
    document = parse_document(study.text, study.path, "study")
    for name in sorted(names):
        if (study.build_dir(name) / "dataset.json").exists():
            continue
        spec = study.datasets[name]
        paths = {"path": spec.path} | {f"splits.{split}.path": path for split, path in spec.split_paths.items()}
        lines += [
            f"{document.where(('datasets', name, *key.split('.')))}: datasets.{name}.{key}: {path} does not exist on this machine; give "
            "the source's path (relative: to the study file)"
            for key, path in paths.items()
            if path is not None and not os.path.lexists(path)
        ]
    return lines


def refuse_missing_sources(study: Study, names: Sequence[str]) -> None:
    """Raise ConfigError when a dataset is to be built and its source is not there; DatasetError, StorageError when a tree of files, which
    is read where it lies whenever it is staged, is not what was hashed."""
    lines = missing_sources(study, names)
    if lines:
        raise errors.ConfigError("\n".join(lines))
    trees = [name for name in names if study.datasets[name].is_tree and (study.build_dir(name) / "plan.json").exists()]
    for name in trees:
        changed: str | None = calls.call_isolated(f"the files of dataset {name}", _changed, str(study.build_dir(name)), timeout_s=STORAGE_S)
        if changed is not None:
            command = study.command("dataset", "build", name, "--fresh", "--study", str(study.path))
            raise errors.DatasetError(f"{study.path}: datasets.{name}: {changed}; {advice(command)}")


def _changed(build_dir: str) -> str | None:
    """Return how a source has changed since it was built. It is called in a process of its own, because storage may hang."""
    from data_prep.tree.plan import changed_since

    return changed_since(Path(build_dir))


# The check of storage before anything is written there.


LOOK_S: Final = 60.0
"""The seconds that a look at a few directories may take: network storage may hang."""


def refuse_unreadable_storage(study: Study) -> None:
    """Raise StorageError when no results can be where the site says. Storage that is not there yet is empty, and no error."""
    _refuse(study, [study.results_dir], to_write=False)


def refuse_small_cache(study: Study, datasets: Iterable[DatasetRequirements]) -> None:
    """Raise NotEnoughSpace for a dataset that a node's cache may not hold. What disks have room for, build and staging say."""
    site, most = study.site, study.site.cache.max_bytes
    for needs in datasets:
        if most is not None and needs.bytes is not None and needs.bytes > most:
            raise errors.NotEnoughSpace(
                f"{study.path}: dataset {needs.name} takes {format_size(needs.bytes)} ({needs.bytes_are}), and cache.max_bytes of the site "
                f"{site.name!r} is {format_size(most)}: no node could hold it; raise cache.max_bytes, or make the dataset smaller"
            )


def why_unusable(place: Path, to_write: bool) -> str | None:
    """Return why `place`, the nearest thing above a path that exists, cannot be used, or None."""
    if not place.is_dir():
        return f"{place} is not a directory"
    if not os.access(place, os.R_OK | os.X_OK):
        return f"{place} cannot be read by you"
    return f"{place} cannot be written by you, or is mounted read-only" if to_write and not os.access(place, os.W_OK) else None


def _refuse(study: Study, paths: Sequence[Path], to_write: bool) -> None:
    site = study.site
    found = calls.call_limited(f"storage {site.storage}", _first_problem, [str(path) for path in paths], to_write, timeout_s=LOOK_S)
    if found is not None:
        raise errors.StorageError(
            f"storage {site.storage} of the site {site.name!r} cannot be used: {found}; mend that, or `storage` of the site file"
        )


def _first_problem(paths: Sequence[str], to_write: bool) -> str | None:
    """Return why one of `paths` cannot be used. It is called in a child with a time limit."""
    for path in paths:
        problem = why_unusable(mounts.nearest_mount(Path(path))[0], to_write)
        if problem is not None:
            return problem
    return None


REPORT: Final = ("polars", "pyarrow", "altair", "vl_convert", "jinja2", "scipy", "pygments")
"""The modules of the extra `report`."""


def refuse_site(study: Study, environ: Mapping[str, str]) -> None:
    """Raise UnsupportedRequest or ConfigError for a site on which nothing can run from here."""
    schedulers.get_scheduler(study.site.scheduler)
    get_engine(study.site.engine)
    _refuse_engine_of_another_scheduler(study.site)
    refuse_other_scheduler(study.site, environ)


def _refuse_engine_of_another_scheduler(site: Site) -> None:
    needed = ONLY_UNDER.get(site.engine, site.scheduler)
    if site.scheduler != needed:
        raise errors.UnsupportedRequest(
            f"site {site.name}: engine {site.engine} is part of the scheduler {needed}, whose steps become containers; found scheduler: "
            f"{site.scheduler}; `slipway doctor` says which engines work here"
        )


def refuse_missing_report() -> None:
    """Raise UnsupportedRequest where the libraries of tables, plots and report are not installed."""
    missing = [name for name in REPORT if find_spec(name) is None]
    if missing:
        raise errors.UnsupportedRequest(
            f"tables, plots and report need {', '.join(missing)}, not installed in {sys.prefix}: install the extra `report` of this "
            "installation (docs/how-to/install.md): pip install polars pyarrow altair vl-convert-python jinja2 scipy pygments"
        )


def refuse_unreachable(site: Site, environ: Mapping[str, str]) -> None:
    """Raise NoScheduler where jobs are to be submitted and this machine cannot ask the scheduler. One that is silent, or answers what
    nobody can read, is asked again later, by those who wait for it."""
    jobs = schedulers.jobs_of(site.scheduler)
    if jobs is None or detection.scheduler_of(environ) == site.scheduler:
        return
    try:
        jobs.our_jobs(0.0, queue_view.QUEUE_S)
    except errors.NoScheduler:
        raise
    except (errors.SchedulerOutputError, ValueError):
        return


def refuse_runs(study: Study, runs: Sequence[Run], environ: Mapping[str, str], *, ask_scheduler: bool = False) -> None:
    """Raise all that stands in the way of `runs`, those still to be made, or of their report, as one error of the class of the first:
    StorageError, ConfigError, UnsupportedRequest, AllocationError, ContainerError, StagingError, NotEnoughSpace or NoScheduler.
    `ask_scheduler`: whether one that this machine cannot ask stands in the way."""
    checks: list[Callable[[], object]] = [refuse_missing_report, partial(refuse_over_budget, study, runs)]
    if runs:
        what = f"what the runs of {study.name} need"
        checks.append(partial(calls.call_limited, what, _refuse_needs, study, runs, environ, timeout_s=STORAGE_S))
        if ask_scheduler:
            checks.append(partial(refuse_unreachable, study.site, environ))
    _refuse(study, [study.results_dir, study.datasets_dir], to_write=True)
    _raise_all(checks)


def _raise_all(checks: Iterable[Callable[[], object]]) -> None:
    """Call every check. Raise one error of what they raise, of the class of the first."""
    raised: list[errors.SlipwayError] = []
    for check in checks:
        try:
            check()
        except errors.SlipwayError as error:
            raised.append(error)
    if raised:
        raise type(raised[0])("\n".join(dict.fromkeys(map(str, raised))))


def _refuse_needs(study: Study, runs: Sequence[Run], environ: Mapping[str, str]) -> None:
    """Refuse runs that lack something. Sources and environments may lie on network storage, so a child with a time limit calls it."""
    cells = list({run.cell.cell_id: run.cell for run in runs}.values())
    _raise_all(
        (
            lambda: _refuse_datasets(study, cells),
            lambda: _refuse_silent_engine(study.site),
            lambda: _refuse_missing_environments(study, cells, environ),
            lambda: _refuse_missing_packages(study, cells, environ),
            lambda: _refuse_missing_gpus(study, cells, environ),
        )
    )


def _refuse_datasets(study: Study, cells: Sequence[Cell]) -> None:
    refuse_missing_sources(study, datasets_of(cells))
    needs = [requirements_of(study, name) for name in datasets_of(cells)]
    _raise_all((lambda: refuse_small_cache(study, needs), lambda: _refuse_large_batches(study, cells, needs)))


def _refuse_silent_engine(site: Site) -> None:
    """Raise ContainerError where this machine is the node and its engine does not answer. What the site's setup brings is not known."""
    if site.scheduler == LOCAL and in_container(site.engine) and not site.setup and (why := why_silent(site.engine)):
        raise errors.ContainerError(f"site {site.name}: engine {site.engine} cannot be used: {why}; start it, or choose another engine")


def _refuse_missing_environments(study: Study, cells: Sequence[Cell], environ: Mapping[str, str]) -> None:
    """Refuse frameworks whose packages are not installed here, where neither an image nor the site's setup brings them.

    Where this machine is the node, a missing launcher is refused too.
    """
    if in_container(study.site.engine) or study.site.setup:
        return
    environments = sorted({(cell.framework, cell.strategy, cell.backend) for cell in cells if cell.program is None})
    missing = [why for name, *words in environments if (why := own_python.what_is_missing(load_framework(name), *words))]
    if study.site.scheduler == LOCAL:
        names = sorted({name for name, *_ in environments})
        missing += [why for name in names if (why := program_check.why_no_mpirun(name, load_framework(name).launcher, environ))]
    if missing:
        raise errors.ConfigError("\n".join(f"{study.path}: {why}" for why in missing))


def _refuse_missing_packages(study: Study, cells: Sequence[Cell], environ: Mapping[str, str]) -> None:
    """Refuse programs of the study that this machine cannot start, where it is the node.

    Elsewhere those are refused that Slipway's own interpreter cannot run, which all nodes have. What the site's setup brings is not known
    here.
    """
    site = study.site
    if site.setup:
        return
    local, contained = site.scheduler == LOCAL, in_container(site.engine)
    programs = {cell.framework: cell.program for cell in cells if cell.program is not None and (local or not contained)}
    for program in (of_program(programs[name]) for name in sorted(programs)):
        why = None
        if local:
            why = program_check.what_is_missing(program, environ, contained=contained)
        elif program.bare_python is None:
            why = program_check.why_packages_differ(program)
        if why is not None:
            raise errors.ConfigError(f"{study.path}: {why}")


def _refuse_large_batches(study: Study, cells: Sequence[Cell], datasets: Sequence[DatasetRequirements]) -> None:
    """Refuse a global batch that no training split of the dataset can fill: such a run would end at its first step."""
    for needs in datasets:
        name, most = needs.name, needs.most_train_samples
        large = [cell for cell in cells if cell.dataset == name and most is not None and cell.global_batch_size > most]
        if large:
            what = "samples" if needs.root is None else "training samples"
            batch, ids = max(cell.global_batch_size for cell in large), first_names(cell.cell_id for cell in large)
            raise errors.ConfigError(
                f"{study.path}: {counted(len(large), 'cell')} cannot run: a global batch of {batch} is more than the "
                f"{most} {what} of {name}; take smaller batches or fewer nodes, exclude these cells "
                f'(exclude: ["global_batch_size > {most}"]), or give more samples: {ids}'
            )


def _refuse_missing_gpus(study: Study, cells: Sequence[Cell], environ: Mapping[str, str]) -> None:
    """Refuse the largest run with GPUs as its start would, where its node is this machine."""
    on_gpus = [cell for cell in cells if device_of(cell.device, study.site) == "cuda"]
    if on_gpus:
        largest = max(on_gpus, key=lambda cell: cell.world_size)
        request = allocation_request(largest, study.cells, study.site)
        schedulers.plan_allocation(study.site.scheduler, request, environ)


# The graph of a study for Snakemake.


CONFIG_KEYS: Final = ("site", "retry", "adopt", "profile")


def load_graph(  # noqa: PLR0913 - each is asked for by one caller at least
    config: Mapping[str, object],
    configfiles: Sequence[Path | str],
    basedir: Path | str,
    environ: Mapping[str, str],
    mode: execution.Mode | None = None,
    tell: Callable[[Study], None] | None = None,
    *,
    ask_scheduler: bool = False,
) -> Graph:
    """Load the graph of the study named by `--configfile`, else of config/study.yaml. Raises ConfigError before anything is started.

    `mode`: how Snakemake runs; None: nobody runs anything now, so that the site fits any. `tell` is called with the study as soon as it is
    read. `ask_scheduler`: see refuse_runs. What cannot run here at all is refused here too: a scheduler or an engine that is not there, and
    more GPU hours than the study allows.
    """
    for key in config:
        if key not in CONFIG_KEYS:
            raise errors.ConfigError(
                f"--config {key}=...: unknown key {key!r}; {choices(key, CONFIG_KEYS)}. What to run stands in the study file"
            )
    retry = config.get("retry", "none")
    if retry not in ("none", "failed"):
        raise errors.ConfigError(f"--config retry={retry}: found {retry!r}, valid: failed")
    if len(configfiles) > 1:
        raise errors.ConfigError(f"one study at a time: --configfile named {len(configfiles)} files: {', '.join(map(str, configfiles))}")
    path = Path(configfiles[0]) if configfiles else Path(basedir, "config", "study.yaml")
    site = config.get("site")
    study = load_study(path, None if site is None else str(site), environ, profile=_is_yes(config, "profile"))
    if tell is not None:
        tell(study)
    refuse_site(study, environ)
    if mode is not None:
        execution.refuse_wrong_way(study.site, mode.way, environ)
    graph = Graph(study, retry == "failed", mode, adopt=_is_yes(config, "adopt"))
    try:
        graph.see_storage(before_runs=mode is not None)
    except OSError as error:
        shown = f"{error.filename}: {error.strerror}"
        raise errors.StorageError(f"which runs are done is noted where Snakemake works, and that cannot be written: {shown}") from error
    refuse_runs(study, graph.runs_to_make, environ, ask_scheduler=ask_scheduler)
    execution.refuse_too_few_nodes(graph.mode, graph.runs_to_make)
    return graph


def _is_yes(config: Mapping[str, object], key: str) -> bool:
    """Return True if the key is set: `adopt`, results of another study file are to become this one's; `profile`, each cell gets one more
    run. Raises ConfigError."""
    found = str(config.get(key, "no")).lower()
    if found not in ("yes", "true", "no", "false"):
        raise errors.ConfigError(f"--config {key}={found}: found {found!r}, valid: yes")
    return found in ("yes", "true")
