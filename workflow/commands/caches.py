"""The caches of this node: one where nodes are machines, one per local node where this machine stands for several."""

from __future__ import annotations

from pathlib import Path

from cluster.schedulers import local
from workflow.study.site import Site


def caches_here(site: Site) -> list[Path]:
    """Those that are there."""
    if site.scheduler == local.NAME:
        return sorted(
            (path for path in site.cache.path.glob(f"{local.NAME}-*") if path.is_dir()), key=lambda path: (len(path.name), path.name)
        )
    return [site.cache.path] if site.cache.path.is_dir() else []
