"""What the hosts' files and environments say: of every cluster, and of each scheduler by its module of texts. Pure."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests import runtimes
from tests.minicluster import lsfconf, pbsconf, sgeconf, slurmconf
from tests.minicluster.spec import USER, USER_ID, Spec

ENVIRON: Final[dict[str, Callable[[Spec], dict[str, str]]]] = {
    "slurm": slurmconf.environ,
    "sge": sgeconf.environ,
    "pbs": pbsconf.environ,
    "lsf": lsfconf.environ,
}
"""What the commands of a scheduler need to find it."""
PREFIXES: Final[dict[str, Callable[[], Path]]] = {"pbs": runtimes.openpbs, "lsf": runtimes.openlava}
"""Where its programs lie, in `bin` and `sbin`, if not in the system's places."""
SITE_WORDS: Final = {
    "slurm": "queue: main\n",
    "sge": f"queue: {sgeconf.QUEUE}\nparallel_environment: whole {{cores}}\n",
    "pbs": "queue: workq\n",
    "lsf": f"queue: {lsfconf.QUEUE}\n",
}
"""Its keys of the site file."""
NO_GPUS: Final = ("lsf",)
"""Those whose jobs cannot ask for GPUs: OpenLava reads `-gpu` as the job group `pu`, and its mbatchd ends."""


def environ(spec: Spec) -> dict[str, str]:
    return ENVIRON[spec.scheduler](spec)


def prefixes(spec: Spec) -> tuple[str, ...]:
    return (str(PREFIXES[spec.scheduler]()),) if spec.scheduler in PREFIXES else ()


def hosts_file(spec: Spec) -> str:
    return "127.0.0.1 localhost\n" + "".join(f"{spec.address(host)} {host}\n" for host in spec.hosts)


def with_user(name: str, text: str, home: str) -> str:
    """This machine's passwd, group or shadow, and in it the cluster's ordinary user."""
    line = {
        "passwd": f"{USER}:x:{USER_ID}:{USER_ID}::{home}:/bin/bash",
        "group": f"{USER}:x:{USER_ID}:",
        "shadow": f"{USER}:*:19000:0:99999:7:::",
    }[name]
    if name == "group":
        text = re.sub(r"^(docker:.*:)$", rf"\1{USER}", text, flags=re.MULTILINE)  # may ask dockerd, where one runs
    return f"{text.rstrip()}\n{line}\n"


def site_yaml(spec: Spec) -> str:
    gpus = f"gpus_per_node: {spec.gpus}\n" if spec.gpus and spec.scheduler not in NO_GPUS else ""
    return f"""\
# Written by `python -m tests.minicluster up`: the mini-cluster {spec.name}
storage: {spec.shared}/slipway
cache: {{path: /local/slipway}}
scheduler: {spec.scheduler}
engine: bare
device: cpu
{gpus}cpus_per_node: {spec.cores}
memory_per_node: {spec.memory_mb}MB
walltime: 2h
deadline_margin: 20s
{SITE_WORDS[spec.scheduler].format(cores=spec.cores)}"""
