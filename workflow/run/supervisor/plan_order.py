"""What a supervisor tells its node programs of the attempt: the order `plan`, but for each node's own cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workflow.run.plan import at_site, cell_document

if TYPE_CHECKING:
    from workflow.run.supervisor.supervisor import Supervisor

BEAT_S: Final = 60.0


def node_orders(run: Supervisor) -> dict[str, Any]:
    """The same for all nodes."""
    site, limits = run.run["site"], run.limits
    return {
        "allocation": run.run["allocation"],
        "tag": run.run["tag"],
        "run_id": run.run_id,
        "run_dir": run.run["run_dir"],
        "cell_document": cell_document(run.run["cell"], run.run, run.allocation, run.work["model"]),
        "framework": at_site(run.work["framework"], site),
        "engine": site["engine"],
        "image": _image(run.work["image"], site),
        "group": site["shared"] == "group",
        "source": run.work["dataset"]["path"],
        "cache_max_bytes": site["cache"]["max_bytes"],
        "cache_check_s": site["cache"].get("check_s"),
        "bytes_per_s": (site.get("storage_limit") or {}).get("bytes_per_s"),
        "beat_s": float(limits.get("beat_s", BEAT_S)),
        "init_s": float(limits["init_s"]),
    }


def _image(image: dict[str, Any] | None, site: dict[str, Any]) -> dict[str, Any] | None:
    """Where nodes find the pinned image, and the place of theirs where its load is locked: one for all that share an engine."""
    if image is None:
        return None
    place = {"archive": image["archive"], "cache": site["cache"]["path"]}
    return {**place, "may_pull": bool(site.get("nodes_may_pull")), "credentials": site.get("registry_credentials")}
