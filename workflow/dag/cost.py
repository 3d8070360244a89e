"""What a study may cost before it is refused: GPU hours = walltime x GPUs x missing runs. Pure.

The limit is checked against this bound, never against an estimate: what it says cannot be exceeded, whatever the runs do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from base.errors import ConfigError
from base.units import counted, format_duration
from workflow.study.cell import Run
from workflow.study.site import device_of
from workflow.study.study import Study


def hours_on(device: str, study: Study, runs: Iterable[Run]) -> float:
    """The most that those of `runs` can take which are on `device`: a run holds its GPUs (`cuda`) for its walltime at most, or has its
    processes on the CPU (`cpu`), against whose hours there is no limit."""
    processes = sum(run.cell.world_size for run in runs if device_of(run.cell.device, study.site) == device)
    return study.limits.walltime_s * processes / 3600


def refuse_over_budget(study: Study, missing: Iterable[Run]) -> None:
    """Raise ConfigError when the runs that are still to be made may take more GPU hours than the study allows."""
    runs = list(missing)
    found = hours_on("cuda", study, runs)
    most = study.limits.gpu_hours
    if found > most:
        raise ConfigError(
            f"{study.path}: limits.gpu_hours: the {counted(len(runs), 'missing run')} may take {found:,.1f} GPU hours "
            f"(walltime {format_duration(study.limits.walltime_s)} x GPUs of each run); valid: at most {most:,g}. "
            f"Raise the limit, exclude cells, or lower limits.walltime{_low_enough(study, found)}"
        )


def _low_enough(study: Study, found: float) -> str:
    """The longest whole minutes with which the runs fit."""
    minutes = math.floor(study.limits.walltime_s * study.limits.gpu_hours / found / 60)
    return f" to {minutes}m, in which a run that takes longer ends as `timeout`" if minutes else ""
