"""Check the walltime of a run against that of a job of the site. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from base.units import format_duration
from workflow.study.explain import Fault
from workflow.study.site import Site


def check_walltime(walltime_s: float, site: Site, without: Sequence[str]) -> tuple[list[Fault], list[str]]:
    """Return faults and notes on the walltime.

    `without`: the frameworks of the study that cannot resume from a checkpoint: their runs must fit into one job.
    """
    if site.walltime_s is None or walltime_s <= site.walltime_s:
        return [], []
    most, found = format_duration(site.walltime_s), format_duration(walltime_s)
    if without:
        message = (
            f"found {found}; valid: at most {most}, the walltime of the site {site.name!r}, "
            f"since framework {', '.join(without)} cannot resume from a checkpoint in another job"
        )
        return [Fault(place=("limits", "walltime"), message=message)], []
    note = f"a run may take {found}, and a job of the site {site.name!r} {most}: runs are saved before its end, and resume in another job"
    return [], [note]
