"""The cgroups of a host that has container daemons: one in every hierarchy of cgroup v1, the root of the host's own cgroup namespace.

So what docker, podman and Slurm make on a node lies below the node's own, has limits of its own, and goes with it.
"""

from __future__ import annotations

from pathlib import Path

from tests.minicluster.spec import Spec

NEEDED_HIERARCHIES = ("devices", "freezer", "memory", "pids")
CPUSET = ("cpuset.cpus", "cpuset.mems")


def hierarchies() -> dict[str, Path]:
    """Where this machine has each: controllers as the kernel names them (`cpu,cpuacct`, `name=systemd`) -> mount point."""
    controllers = {line.split()[0] for line in Path("/proc/cgroups").read_text().splitlines()}
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup":
            names = (word for word in options.split(",") if word in controllers or word.startswith("name="))
            found.setdefault(",".join(names), Path(path))
    return found


def directories(spec: Spec, host: str) -> dict[str, Path]:
    """The host's cgroup in each hierarchy."""
    return {names: path / spec.cgroup_name / host for names, path in hierarchies().items()}


def create(spec: Spec, host: str) -> None:
    for names, directory in directories(spec, host).items():
        for path in (directory.parent, directory):
            path.mkdir(exist_ok=True)
            if "cpuset" in names.split(","):  # empty in a new one, and then no process may enter
                for file in CPUSET:
                    (path / file).write_text((path.parent / file).read_text())


def of_cluster(spec: Spec) -> list[Path]:
    """All that may hold cgroups of the cluster, its hosts with and without containers."""
    return list(dict.fromkeys([spec.cgroup("login").parent, *(path / spec.cgroup_name for path in hierarchies().values())]))
