"""What a supervisor tells all its node programs of the attempt: the order Plan, except the path of each node's own cache."""

from __future__ import annotations

from typing import Any

from cluster.types import Allocation
from workflow.run.link.orders import Image, Plan, RanksPlan
from workflow.run.plan import at_site, cell_document
from workflow.run.storage.description import Work
from workflow.run.storage.prepared import PreparedRun
from workflow.run.supervisor.limits import RANK_SILENCE_S
from workflow.study.cell import Cell, Run


def node_plan(run: PreparedRun, allocation: Allocation, work: Work) -> Plan:
    """The same for all nodes."""
    site, limits = run.site, run.limits
    return Plan(
        allocation=allocation,
        tag=run.tag,
        run_id=run.run_id,
        run_dir=run.run_dir,
        group=site["shared"] == "group",
        source=work.dataset.path,
        cache=site["cache"]["path"],
        cache_max_bytes=site["cache"]["max_bytes"],
        cache_check_s=site["cache"].get("check_s"),
        bytes_per_s=(site.get("storage_limit") or {}).get("bytes_per_s"),
        ranks=RanksPlan(
            framework=at_site(work.framework, site),
            cell=cell_document(Run(cell=Cell.from_json(run.cell), repeat=run.repeat), run.attempt, allocation, work.model),
            engine=site["engine"],
            image=_image(work.image, site),
            beat_s=float(limits.get("beat_s", RANK_SILENCE_S)),
            init_s=float(limits["init_s"]),
        ),
    )


def _image(image: dict[str, Any] | None, site: dict[str, Any]) -> Image | None:
    """Where nodes find the pinned image."""
    if image is None:
        return None
    return Image(
        archive=image["archive"],
        cache=site["cache"]["path"],
        may_pull=bool(site.get("nodes_may_pull")),
        credentials=site.get("registry_credentials"),
    )
