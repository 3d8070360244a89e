"""`slipway reap`: the results in this node's cache that storage did not take when they were made."""

from __future__ import annotations

from base.errors import PushError
from base.logs import private_umask
from base.units import counted
from data_prep.push import deliver_pending
from workflow.commands import show
from workflow.commands.caches import caches_here
from workflow.study.site_file import load_site


def main(site_name: str | None, push: bool) -> None:
    """Count what waits, or deliver it. Raises PushError when something could not be delivered; it goes on waiting."""
    site = load_site(site_name)
    private_umask(group=site.shared == "group")
    if not push:
        waiting = sum(1 for cache in caches_here(site) for _ in (cache / "runs").glob("*/pending.json"))
        show.line(f"{counted(waiting, 'result waits', 'results wait')} in this node's cache" + ("; --push delivers" if waiting else ""))
        return
    deliveries = [delivery for cache in caches_here(site) for delivery in deliver_pending(cache)]
    for delivery in deliveries:
        show.line(f"{delivery.run_dir.name} -> {delivery.target}: {delivery.message}")
    failed = [delivery for delivery in deliveries if not delivery.delivered]
    show.line(f"{len(deliveries) - len(failed)} of {counted(len(deliveries), 'waiting result')} delivered")
    if failed:
        raise PushError(
            f"{counted(len(failed), 'result still waits', 'results still wait')} on this node, the first because: {failed[0].message}"
        )
