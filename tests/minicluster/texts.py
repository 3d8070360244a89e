"""What the hosts' files and environments say: of every cluster, and of each scheduler by its module of texts. Pure."""

import re
from typing import Final, Protocol

from tests.minicluster import lsfconf, pbsconf, sgeconf, slurmconf
from tests.minicluster.spec import USER, USER_ID, Spec


class Texts(Protocol):
    """What a scheduler's module of texts offers."""

    def environ(self, spec: Spec) -> dict[str, str]:
        """What its commands need to find it."""

    def prefixes(self, spec: Spec) -> tuple[str, ...]:
        """Where its programs lie, in `bin` and `sbin`, if not in the system's places."""

    def site_words(self, spec: Spec) -> str:
        """Its keys of the site file."""


TEXTS: Final[dict[str, Texts]] = {"slurm": slurmconf, "sge": sgeconf, "pbs": pbsconf, "lsf": lsfconf}

NO_GPUS: Final = ("lsf",)
"""Those whose jobs cannot ask for GPUs: OpenLava reads `-gpu` as the job group `pu`, and its mbatchd ends."""


def environ(spec: Spec) -> dict[str, str]:
    return TEXTS[spec.scheduler].environ(spec)


def prefixes(spec: Spec) -> tuple[str, ...]:
    return TEXTS[spec.scheduler].prefixes(spec)


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
{TEXTS[spec.scheduler].site_words(spec)}"""
