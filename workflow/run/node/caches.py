"""Find the caches of this node: one where nodes are machines, one per local node where this machine stands for several."""

import os
import stat
from pathlib import Path

from base import errors, humanize, untrusted
from cluster.schedulers import local
from workflow.study.site import Site


def cache_here(site: Site) -> Path:
    """Return `cache.path` of the site as it is called on this machine. Raises StagingError if a variable in it is not set here."""
    if site.cache.place is None:
        return site.cache.path
    try:
        return humanize.expanded_path(str(site.cache.path), os.environ)
    except ValueError as error:
        raise errors.StagingError(f"{site.cache.place}: cache.path: {error}; look on a node, inside of a job that sets it") from error


def cache_or_none(site: Site) -> Path | None:
    """Return the same, or None if a variable in it is not set here: this machine is no node."""
    try:
        return cache_here(site)
    except errors.StagingError:
        return None


def cache_words(site: Site, chosen: str | None) -> str:
    """Describe the place of the cache: `/local/slipway (site here)`, with the site as it was chosen."""
    cache = cache_or_none(site)
    there = f"{site.cache.path}, which is no path on this machine" if cache is None else str(cache)
    return f"{there} (site {chosen or site.name})"


def nothing_words(site: Site) -> str:
    """Explain why there is nothing to show."""
    try:
        return f"nothing is cached: {cache_here(site)} is empty or not there"
    except errors.StagingError as error:
        return f"nothing is known of a cache here: {error}"


def caches_here(site: Site) -> list[Path]:
    """List the caches of this machine that are ours. Raises StagingError if somebody else could change what is in them."""
    cache, group = cache_or_none(site), site.shared == "group"
    if cache is None or not cache.is_dir():
        return []
    found = [cache]
    if site.scheduler == local.NAME:
        found = [path for path in cache.glob(f"{local.NAME}-*") if _may_be_ours(path.lstat())]
    for path in found:
        refuse_distrusted(path, group=group)
    return sorted(found, key=lambda path: (len(path.name), path.name))


def refuse_distrusted(cache: Path, *, group: bool) -> None:
    """Raise StagingError where somebody else could change what is in `cache`."""
    problem = untrusted.why_distrusted(cache, group=group)
    if problem is not None:
        raise errors.StagingError(f"the cache {cache} cannot be used: {problem}; mend that, or set cache.path of the site file")


def _may_be_ours(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and (status.st_uid == os.geteuid() or untrusted.is_group_open(status))
