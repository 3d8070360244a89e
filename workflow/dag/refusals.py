"""What cannot run is refused once, before anything starts: by `slipway plan` and by Snakemake, with the same error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from base.errors import ConfigError, UnsupportedRequest
from base.limited import call_limited
from base.units import counted
from cluster.schedulers import get_scheduler
from containers.engines import ONLY_UNDER, get_engine, in_container
from containers.frameworks import load_framework
from containers.frameworks.environment import what_is_missing
from workflow.dag.cost import refuse_over_budget
from workflow.dag.image_file import refuse_missing_credentials
from workflow.dag.job_size import refuse_owned_directives
from workflow.dag.requirements import dataset_needs
from workflow.dag.source_paths import refuse_missing_sources
from workflow.dag.storage_place import refuse_unusable_storage
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.explain import some
from workflow.study.origin import STORAGE_S
from workflow.study.site import Site, device_of, refuse_foreign_scheduler
from workflow.study.study import Study


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


def refuse_runs(study: Study, runs: Sequence[Run], environ: Mapping[str, str]) -> None:
    """Raise StorageError, ConfigError or AllocationError when `runs`, those still to be made, cannot all be made."""
    refuse_unusable_storage(study)
    refuse_over_budget(study, runs)
    if runs:
        call_limited(f"what the runs of {study.name} need", _refuse_needs, study, runs, environ, timeout_s=STORAGE_S)


def _refuse_needs(study: Study, runs: Sequence[Run], environ: Mapping[str, str]) -> None:
    """In a child with a time limit, since sources, datasets and environments may lie on network storage."""
    refuse_missing_credentials(study.site)
    refuse_missing_sources(study, datasets_of(run.cell for run in runs))
    cells = list({run.cell.cell_id: run.cell for run in runs}.values())
    _refuse_missing_environments(study, cells)
    _refuse_large_batches(study, cells)
    _refuse_missing_gpus(study, cells, environ)


def _refuse_missing_environments(study: Study, cells: Sequence[Cell]) -> None:
    """Frameworks whose packages are not installed here, where no image brings them."""
    if in_container(study.site.engine):
        return
    asked = sorted({(cell.framework, cell.strategy, cell.backend) for cell in cells if cell.program is None})
    missing = [why for name, *words in asked if (why := what_is_missing(load_framework(name), *words))]
    if missing:
        raise ConfigError("\n".join(f"{study.path}: {why}" for why in missing))


def _refuse_large_batches(study: Study, cells: Sequence[Cell]) -> None:
    """A global batch that no training split of the dataset can fill: such a run would end at its first step."""
    for name in datasets_of(cells):
        needs = dataset_needs(study, name)
        most = needs.most_train_samples
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
