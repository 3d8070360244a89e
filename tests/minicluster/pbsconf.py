"""What OpenPBS is told at the making of a cluster: its configuration files, and orders for qmgr. Pure."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests import runtimes
from tests.minicluster.spec import Spec

HOME = "/run/spool/pbs"
"""PBS_HOME, of each host's own, which outlives its power. PBS refuses one below a directory where everybody may write."""
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SCHEDULER_LOOKS_S = 5


def configuration(spec: Spec) -> Path:
    return spec.root / "pbs" / "pbs.conf"


def head_configuration(spec: Spec) -> Path:
    """pbs.conf as PBS's own scripts want it on the host of the server, to make what a server keeps."""
    return spec.root / "pbs" / "head.conf"


def environ(spec: Spec) -> dict[str, str]:
    return {"PBS_CONF_FILE": str(configuration(spec))}


def pbs_conf(*, head: bool) -> str:
    words = {"EXEC": str(runtimes.openpbs()), "SERVER": "login", "HOME": HOME, "CORE_LIMIT": "0", "SCP": "/usr/bin/scp"}
    starts = {f"START_{daemon}": str(int(head)) for daemon in ("SERVER", "SCHED", "COMM")} | {"START_MOM": "0"}
    return "".join(f"PBS_{name}={value}\n" for name, value in (words | starts).items())


def job_environment(spec: Spec) -> str:
    words = {"PATH": "/bin:/usr/bin", "TZ": "UTC", **environ(spec)}
    return "".join(f"{name}={value}\n" for name, value in words.items())


def mom_config() -> str:
    """All hosts see the same files but for their own disks."""
    return "$clienthost login\n$usecp *:/ /\n$tmpdir /tmp\n"


def sched_config(text: str) -> str:
    """The scheduler counts only what it is told to count."""
    return re.sub(r'^resources: "(.*)"$', r'resources: "\1, ngpus"', text, flags=re.MULTILINE)


def orders(spec: Spec) -> str:
    """For qmgr, once: what a site's administrator does."""
    server = {
        "job_history_enable": "True",
        "flatuid": "True",
        "node_fail_requeue": str(spec.slurmd_timeout),
        "log_events": "511",
    }
    size = {"ncpus": str(spec.cores), "ngpus": str(spec.gpus), "mem": f"{spec.memory_mb}mb"}
    lines = ["create resource ngpus type=long,flag=nh", *(f"set server {name} = {value}" for name, value in server.items())]
    lines += [f"set queue workq kill_delay = {spec.kill_wait}", f"set sched default scheduler_iteration = {SCHEDULER_LOOKS_S}"]
    for host in spec.compute_nodes:
        lines += [f"create node {host}", *(f"set node {host} resources_available.{name} = {value}" for name, value in size.items())]
    return "\n".join(lines) + "\n"


def states(nodes: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    return {name: str(node.get("state")) for name, node in nodes.items()}
