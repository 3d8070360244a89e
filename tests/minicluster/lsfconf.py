"""What OpenLava is told at the making of a cluster: its configuration files. Pure.

Two lsf.conf of one cluster: only the login node may become its master. A compute node that is cut off would make itself one else, and write
to the same files of jobs.
"""

from collections.abc import Mapping
from pathlib import Path

from tests import runtimes
from tests.minicluster.spec import Spec

QUEUE = "normal"
ADMINISTRATOR = "daemon"
"""Of this machine, and not root: mbatchd writes as that user."""
LOOKS_S = 1
"""mbatchd and sbatchd look at their jobs so often."""
BEATS_S = 1
"""A lim tells of its host so often."""
SILENT = 2
"""Beats of a silent lim until it is asked."""
PORTS = {"LSF_LIM_PORT": 16322, "LSF_RES_PORT": 16323, "LSB_MBD_PORT": 16324, "LSB_SBD_PORT": 16325}


def place(spec: Spec) -> Path:
    return spec.root / "lsf"


def etc(spec: Spec, *, head: bool = False) -> Path:
    """The directory of lsf.conf; `head`: of the login node's daemons."""
    return place(spec) / ("head" if head else "etc")


def environ(spec: Spec) -> dict[str, str]:
    return {"LSF_ENVDIR": str(etc(spec))}


def files(spec: Spec) -> dict[Path, str]:
    common = etc(spec)
    written = {
        "lsf.conf": lsf_conf(spec, head=False),
        "lsf.shared": LSF_SHARED,
        "lsf.task": "Begin RemoteTasks\nEnd RemoteTasks\n",
        "lsf.cluster.openlava": lsf_cluster(spec),
        "lsb.params": lsb_params(spec),
        "lsb.hosts": lsb_hosts(spec),
        "lsb.queues": section("Queue", f"QUEUE_NAME={QUEUE}", "PRIORITY=30", "EXCLUSIVE=Y", "NEW_JOB_SCHED_DELAY=0"),
        "lsb.users": "",
        "lsb.resources": "",
    }
    return {etc(spec, head=True) / "lsf.conf": lsf_conf(spec, head=True), **{common / name: text for name, text in written.items()}}


def lsf_conf(spec: Spec, *, head: bool) -> str:
    programs, own = runtimes.openlava(), place(spec)
    words = {
        "LSF_SERVERDIR": programs / "sbin",
        "LSF_BINDIR": programs / "bin",
        "LSF_LIBDIR": programs / "lib",
        "LSF_ENVDIR": etc(spec, head=head),
        "LSF_CONFDIR": etc(spec),
        "LSB_CONFDIR": etc(spec),
        "LSB_SHAREDIR": own / "work",
        "LSF_LOGDIR": own / "log",
        "LSF_LOG_MASK": "LOG_INFO",
        "LSF_STRIP_DOMAIN": ".none",
        "LSF_AUTH": "eauth",
        **PORTS,
        **({} if head else {"LIM_COMPUTE_ONLY": "y"}),
    }
    return "".join(f"{line}\n" for line in lines(words))


LSF_SHARED = """\
Begin Cluster
ClusterName
openlava
End Cluster
Begin HostType
TYPENAME
linux
End HostType
Begin HostModel
MODELNAME CPUFACTOR ARCHITECTURE
host 100 (x86_64)
End HostModel
Begin Resource
RESOURCENAME TYPE INTERVAL INCREASING DESCRIPTION
cs Boolean () () (unused, but one must be there)
End Resource
"""


def lsf_cluster(spec: Spec) -> str:
    """A lim that is silent for `slurmd_timeout` is away. The master tells all others of itself once in HOST_INACTIVITY_LIMIT - 1 beats."""
    retries = max(1, spec.slurmd_timeout // BEATS_S - SILENT)
    beats = {"EXINTERVAL": BEATS_S, "ELIM_POLL_INTERVAL": BEATS_S, "HOST_INACTIVITY_LIMIT": SILENT, "RETRY_LIMIT": retries}
    hosts = (f"{host} host linux 1 - ()" for host in ("login", *spec.compute_nodes))
    return "".join(
        [
            section("Parameters", *lines(beats)),
            section("ClusterAdmins", f"Administrators = {ADMINISTRATOR}"),
            section("Host", "HOSTNAME model type server r1m RESOURCES", *hosts),
        ]
    )


def lsb_params(spec: Spec) -> str:
    """Between INT, TERM and KILL of a job it waits `kill_wait` seconds."""
    words = {
        "DEFAULT_QUEUE": QUEUE,
        "MBD_SLEEP_TIME": LOOKS_S,
        "SBD_SLEEP_TIME": LOOKS_S,
        "LOAD_UPDATE_INTVL": LOOKS_S,
        "JOB_ACCEPT_INTERVAL": 0,
        "CLEAN_PERIOD": 3600,
        "JOB_TERMINATE_INTERVAL": spec.kill_wait,
        "ABS_RUNLIMIT": "Y",
    }
    return section("Parameters", *lines(words))


def lsb_hosts(spec: Spec) -> str:
    """No job runs on the login node."""
    return section("Host", "HOST_NAME MXJ r1m", "login 0 ()", f"default {spec.cores} ()")


def section(name: str, *inside: str) -> str:
    return "\n".join([f"Begin {name}", *inside, f"End {name}", ""])


def lines(words: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in words.items()]


def states(answer: str) -> dict[str, str]:
    found = (line.split() for line in answer.splitlines()[1:])
    return {words[0]: words[1] for words in found if len(words) > 1}
