"""The partitions of a cluster and their nodes, from the answers of scontrol and sinfo. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cluster.schedulers.slurm.answers import fields_of, parse_duration

SHOW: Final = ("scontrol", "--oneliner", "show", "partition")
SINFO: Final = ("sinfo", "--noheader", "--exact", "--format=%R|%D|%T|%c|%m|%G|%f")
MIB: Final = 1 << 20
DOWN: Final = ("down", "drain", "fail", "maint", "unknown", "error", "power", "reboot", "no_respond")
_GPU: Final = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?:([0-9]{1,9})(?![0-9])")
_NUMBER: Final = re.compile(r"([0-9]{1,9})(?![0-9])")
"""At most 9 digits: larger sizes do not exist."""

Partition = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """So many nodes of a partition that are alike. `cpus` and `memory_bytes` are lower bounds where sinfo says `64+`."""

    partition: str
    count: int
    state: str
    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""

    @property
    def usable(self) -> bool:
        """Whether a job can run there, now or later."""
        return not any(word in self.state for word in DOWN) and not self.state.endswith("*")


def parse_partitions(text: str) -> dict[str, Partition]:
    """The lines of `SHOW`, by name."""
    lines = [fields_of(line) for line in text.splitlines()]
    return {line["PartitionName"]: line for line in lines if "PartitionName" in line}


def parse_nodes(text: str) -> tuple[Nodes, ...]:
    """The lines of `SINFO`; one that cannot be read is left out."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|")
        numbers = [_NUMBER.match(word) for word in words[1:2] + words[3:5]]
        if len(words) < 7 or not all(numbers):
            continue
        count, cpus, memory = (int(number[0]) for number in numbers if number)
        gpus = _GPU.findall(re.sub(r"\([^)]*\)", "", words[5]))
        found.append(
            Nodes(
                partition=words[0],
                count=count,
                state=words[2].lower(),
                cpus=cpus,
                memory_bytes=memory * MIB,
                gpus=sum(int(number) for _, number in gpus),
                gpu_model=gpus[0][0] if gpus else "",
            )
        )
    return tuple(found)


def whole_number(text: str) -> int | None:
    """A number of at most 9 digits; None for words and what is no such number."""
    return int(text) if _NUMBER.fullmatch(text) else None


def longest_s(partition: Partition) -> float | None:
    """How long a job of the partition may take; None: for ever, or it cannot be read."""
    try:
        return parse_duration(partition.get("MaxTime", ""))
    except ValueError:
        return None


def default_partition(partitions: Mapping[str, Partition]) -> str | None:
    """The one that jobs go to that name none."""
    return next((name for name, line in partitions.items() if line.get("Default") == "YES"), None)
