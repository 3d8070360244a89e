"""The Debian packages a cluster needs, from the list beside this file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import runtimes
from tests.minicluster.cgroups import NEEDED_HIERARCHIES, hierarchies
from tests.minicluster.spec import ClusterError, Spec

LIST = Path(__file__).with_name("debian-packages.txt")
ACCOUNTING = ("slurmdbd", "mariadb-server")
SLOW_STORAGE = ("sshfs", "openssh-server")
SCHEDULERS = {"slurm": ("slurm-wlm", "munge"), "sge": ("gridengine-master", "gridengine-exec", "gridengine-client")}
NO_OPENPBS = "OpenPBS is not here: tests/runtimes/build-openpbs.sh"
NO_OPENLAVA = "OpenLava is not here: tests/runtimes/build-openlava.sh"
CONTAINERS = ("docker.io", "podman", "crun", "debootstrap")


def needed(*, scheduler: str = "slurm", accounting: bool = False, slow_storage: bool = False, docker: bool = False) -> tuple[str, ...]:
    listed = tuple(line.strip() for line in LIST.read_text().splitlines() if line.strip())
    skipped = (
        *(package for name, packages in SCHEDULERS.items() if name != scheduler for package in packages),
        *(() if accounting else ACCOUNTING),
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
    absent = missing(
        needed(scheduler=spec.scheduler, accounting=spec.accounting, slow_storage=spec.storage_mbit is not None, docker=spec.docker)
    )
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
    """Debian has neither OpenPBS nor OpenLava."""
    if scheduler == "pbs" and not (runtimes.openpbs() / "sbin" / "pbs_mom").exists():
        raise ClusterError(NO_OPENPBS)
    if scheduler == "lsf" and not (runtimes.openlava() / "sbin" / "sbatchd").exists():
        raise ClusterError(NO_OPENLAVA)


def missing_here(docker: bool = False, scheduler: str = "slurm") -> str | None:
    """Why no cluster (with containers) can be made here, in words; None where one can. For tests, which install nothing."""
    try:
        check_rights(docker)
        check_built(scheduler)
        absent = missing(needed(scheduler=scheduler, accounting=scheduler == "slurm", slow_storage=True, docker=docker))
    except ClusterError as error:
        return str(error)
    return f"Debian packages are missing: {' '.join(absent)}" if absent else None
