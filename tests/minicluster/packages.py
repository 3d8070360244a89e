"""The Debian packages a cluster needs, from the list beside this file."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import runtimes
from tests.minicluster.processes import NEEDED_HIERARCHIES, hierarchies
from tests.minicluster.spec import ClusterError, Spec

LIST = Path(__file__).with_name("debian-packages.txt")
SLOW_STORAGE = ("sshfs", "openssh-server")
SCHEDULERS = {"slurm": ("slurm-wlm", "munge"), "sge": ("gridengine-master", "gridengine-exec", "gridengine-client")}
BUILT = {
    "pbs": ("OpenPBS", "openpbs", "SLIPWAY_PBS", ("bin/qstat", "sbin/pbs_mom", "sbin/pbs_server", "libexec/pbs_postinstall")),
    "lsf": ("OpenLava", "openlava", "SLIPWAY_LSF", ("bin/bsub", "sbin/lim", "sbin/mbatchd", "sbin/sbatchd")),
}
"""The schedulers that Debian does not have: title, name of the build, variable that names another place, and programs that are needed."""
OWN_PLACES = ("/tmp", "/run", "/proc", "/dev", "/local")
"""Directories that each host has for itself: what this machine has there is not seen on hosts."""
CONTAINERS = ("docker.io", "podman", "crun", "debootstrap")


def needed(*, scheduler: str = "slurm", slow_storage: bool = False, docker: bool = False) -> tuple[str, ...]:
    listed = tuple(line.strip() for line in LIST.read_text().splitlines() if line.strip())
    skipped = (
        *(package for name, packages in SCHEDULERS.items() if name != scheduler for package in packages),
        *(() if slow_storage else SLOW_STORAGE),
        *(() if docker else CONTAINERS),
    )
    return tuple(name for name in listed if name not in skipped)


def missing(names: tuple[str, ...]) -> tuple[str, ...]:
    if shutil.which("dpkg-query") is None:
        raise ClusterError("dpkg-query is not here: the mini-cluster needs Debian 12")
    done = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *names], capture_output=True, text=True, check=False)
    installed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    return tuple(name for name in names if name not in installed)


def ensure(spec: Spec) -> None:
    """Install what is missing, without starting its services. What no package has, must be here."""
    check_built(spec.scheduler)
    absent = missing(needed(scheduler=spec.scheduler, slow_storage=spec.storage_mbit is not None, docker=spec.docker))
    if not absent:
        return
    sys.stderr.write(f"installing {', '.join(absent)}\n")
    # RUNLEVEL=1: maintainer scripts then start no daemon
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for argv in (["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "--no-install-recommends", *absent]):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment)
        if done.returncode != 0:
            words = "\n".join(done.stdout.splitlines()[-10:])
            raise ClusterError(f"{' '.join(argv)} ended with {done.returncode}; install by hand: {' '.join(absent)}\n{words}")


def check_rights(docker: bool = False) -> None:
    if os.geteuid() != 0:
        raise ClusterError("the mini-cluster makes network namespaces and mounts: run it as root")
    if "\nfreezer\t" not in Path("/proc/cgroups").read_text():
        raise ClusterError("this kernel has no freezer of cgroup v1, which Slurm's cgroup plugin needs")
    if docker and not set(NEEDED_HIERARCHIES) <= {name for names in hierarchies() for name in names.split(",")}:
        raise ClusterError(
            f"docker on the nodes needs these controllers mounted as cgroup v1 on this machine: {', '.join(NEEDED_HIERARCHIES)}; "
            f"found {', '.join(hierarchies()) or 'none'}"
        )


def check_built(scheduler: str) -> None:
    """Raise ClusterError where a scheduler that Debian does not have is not here, or where the variable that names its place is wrong."""
    if scheduler not in BUILT:
        return
    title, name, variable, programs = BUILT[scheduler]
    place = runtimes.openpbs() if scheduler == "pbs" else runtimes.openlava()
    absent = next((program for program in programs if not os.access(place / program, os.X_OK)), None)
    if absent is not None and variable not in os.environ:
        raise ClusterError(f"{title} is not here, and no package registry has it: tests/runtimes/build-{name}.sh")
    own = next((own for own in OWN_PLACES if place.resolve().is_relative_to(own)), None)
    valid = f"valid: the absolute path of a directory that tests/runtimes/build-{name}.sh has made, outside of {', '.join(OWN_PLACES)}"
    if not place.is_absolute() or own is not None:
        raise ClusterError(f"{variable}: found {str(place)!r}; {valid}, which each host has for itself")
    if absent is not None:
        raise ClusterError(f"{variable}: found {str(place)!r}, where {absent} is no program; {valid}")


def missing_here(docker: bool = False, scheduler: str = "slurm") -> str | None:
    """Why no cluster (with containers) can be made here, in words; None where one can. For tests, which install nothing."""
    try:
        check_rights(docker)
        check_built(scheduler)
        absent = missing(needed(scheduler=scheduler, slow_storage=True, docker=docker))
    except ClusterError as error:
        return str(error)
    return f"Debian packages are missing: {' '.join(absent)}" if absent else None
