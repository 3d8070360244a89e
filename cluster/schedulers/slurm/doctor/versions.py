"""What is known of Slurm's versions: bugs, and what came when. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from base.finding import Finding

SUBJECT: Final = "scheduler"
Version = tuple[int, int, int]
OLDEST: Final[Version] = (20, 11, 0)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def parse_version(text: str) -> Version | None:
    """`22.05.8`, `slurm-wlm 22.05.8`, `slurm 23.11.4-1.el9`: (22, 5, 8); None where there is no number."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def judge_version(version: Version | None, cgroup_plugin: str | None) -> Iterator[Finding]:
    """Pure: what matters to us in this version; `cgroup_plugin` as scontrol says it, such as `cgroup/v2` (None: not said)."""
    if version is None:
        yield Finding(SUBJECT, "warning", "Slurm does not say its version", "`scontrol --version` by hand")
        return
    name = f"Slurm {version[0]}.{version[1]:02}.{version[2]}"
    if version < OLDEST:
        yield Finding(
            SUBJECT, "error", f"{name}: srun has no --overlap before 20.11, so no step can start beside the batch script", "update"
        )
        return
    if (22, 5, 5) <= version <= (22, 5, 8):
        text = f"{name}: --gpus is broken in 22.05.5 to 22.05.8 (bug 15857: 'Requested node configuration is not available')"
        yield Finding(SUBJECT, "note", text, "nothing: Slipway asks with --gres (so should `directives` of your own)")
    if version < (23, 2, 0):
        text = f"{name} does not tell jobs their end (SLURM_JOB_END_TIME came with 23.02)"
        yield Finding(SUBJECT, "note", text, "nothing: each run asks the controller once for it")
    if version < (23, 11, 0):
        text = f"{name}: scancel signals only direct children of a step's daemon (SignalChildrenProcesses came with 23.11)"
        yield Finding(SUBJECT, "note", text, "nothing: every node program is such a child and stops what it started")
    if version < (25, 5, 0) or cgroup_plugin == "cgroup/v1":
        yield Finding(
            SUBJECT,
            "note",
            f"{name}{f' with {cgroup_plugin}' if cgroup_plugin else ''}: the end of a job does not kill nested cgroups, such as a "
            "container's, that processes of it have made (cgroup.kill is used from 25.05 on, with cgroup/v2)",
            "nothing: containers are stopped by their node program and have a watchdog",
        )
