"""Processes of a host are those in its network namespace or its cgroup: found by what they are, not by a pid that may be reused."""

import contextlib
import os
import signal
from pathlib import Path

from tests.minicluster.network import NETNS
from tests.minicluster.spec import Spec
from tests.minicluster.waiting import wait_until


def inside(spec: Spec, host: str) -> list[int]:
    """Every process of `host`, zombies excepted."""
    found = set(cgroup_pids(spec, host))
    with contextlib.suppress(FileNotFoundError):
        inode = (NETNS / spec.netns(host)).stat().st_ino
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{entry}/ns/net").stat().st_ino == inode:
                        found.add(int(entry))
    return sorted(found)


def cgroup_pids(spec: Spec, host: str) -> list[int]:
    pids: list[int] = []
    for path in files_below(spec.cgroup(host), "cgroup.procs"):
        with contextlib.suppress(OSError):
            pids += [int(line) for line in path.read_text().split()]
    return [pid for pid in pids if state_of(pid) not in ("Z", "")]


def files_below(directory: Path, name: str) -> list[Path]:
    """Those of that name in all directories. Containers come and go: unlike rglob, a directory that vanishes meanwhile is no error."""
    return [Path(found, name) for found, _, names in os.walk(directory) if name in names]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def read(pid: int, name: str) -> bytes:
    """A file of a process; empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def init_of(spec: Spec, host: str) -> int | None:
    """The host's process 1, by which its namespaces are entered; None while it is off."""
    for pid in inside(spec, host):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:") and len(words := line.split()) == 3 and words[2] == "1":
                    return pid
    return None


def named(spec: Spec, host: str, names: tuple[str, ...]) -> list[int]:
    found = []
    for pid in inside(spec, host):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                found.append(pid)
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_all(spec: Spec, host: str, limit_s: float = 20.0) -> None:
    """End of the host's power: SIGKILL to all, process 1 first, which takes its whole process namespace with it."""
    thaw(spec, host)

    def gone() -> bool:
        first = init_of(spec, host)
        pids = inside(spec, host)
        send([first] if first else pids, signal.SIGKILL)
        return not pids

    wait_until(gone, limit_s, f"the processes of {host} end")


def thaw(spec: Spec, host: str) -> None:
    """Every step that Slurm froze: a frozen process does not die."""
    for path in files_below(spec.cgroup(host), "freezer.state"):
        with contextlib.suppress(FileNotFoundError):
            path.write_text("THAWED")


def remove_cgroups(directory: Path) -> None:
    """The cgroup directories from the innermost outwards; whoever joined late is killed."""

    def removed() -> bool:
        for path in files_below(directory, "cgroup.procs"):
            with contextlib.suppress(OSError):
                send([int(line) for line in path.read_text().split()], signal.SIGKILL)
        for name, _, _ in os.walk(directory, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(name)
        return not directory.exists()

    wait_until(removed, 10.0, f"{directory} empties")


# The cgroups of a host that has container daemons: one in every hierarchy of cgroup v1, the root of the host's own cgroup namespace.
#
# So what docker, podman and Slurm make on a node lies below the node's own, has limits of its own, and goes with it.


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
