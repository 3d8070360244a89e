"""What a supervisor tells all its node programs of the attempt: the order Plan, except the path of each node's own cache."""

from __future__ import annotations

from msgspec.structs import replace

from cluster.types import Allocation
from containers.images.model import StudyImage
from workflow.run.link.orders import Image, Plan, RanksPlan
from workflow.run.plan import at_site, cell_document
from workflow.run.storage.description import Work
from workflow.run.storage.prepared import PreparedRun
from workflow.study.cell import Run
from workflow.study.site import Site, storage_limit


def node_plan(run: PreparedRun, allocation: Allocation, work: Work, rank_silence_s: float) -> Plan:
    """The same for all nodes."""
    ranks = RanksPlan(
        framework=at_site(work.framework, run.site),
        cell=cell_document(Run(cell=run.cell, repeat=run.repeat), run.attempt, allocation, work.model),
        engine=run.site.engine,
        image=None if work.image is None else _image(work.image, run.site),
        beat_s=rank_silence_s,
        init_s=run.limits.init_s,
    )
    plan = staging_plan(run.site, allocation, run.tag, run.run_dir, None if work.dataset is None else work.dataset.path)
    return replace(plan, run_id=run.run_id, ranks=ranks)


def staging_plan(site: Site, allocation: Allocation, tag: str, run_dir: str, source: str | None) -> Plan:
    """Without ranks: the dataset `source` alone is staged, for whom `tag` names. None: there is no dataset."""
    return Plan(
        allocation=allocation,
        tag=tag,
        run_id=tag,
        run_dir=run_dir,
        group=site.shared == "group",
        source=source,
        cache=str(site.cache.path),
        cache_place=site.cache.place,
        cache_max_bytes=site.cache.max_bytes,
        cache_check_s=site.cache.check_s,
        bytes_per_s=storage_limit(site).bytes_per_s,
        ranks=None,
    )


def _image(image: StudyImage, site: Site) -> Image:
    """Where nodes find the pinned image."""
    credentials = None if site.registry_credentials is None else str(site.registry_credentials)
    return Image(archive=image.archive, cache=str(site.cache.path), may_pull=site.nodes_may_pull, credentials=credentials)
