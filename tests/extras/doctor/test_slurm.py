"""What the doctor reads from Slurm: texts of a real 22.05.8, and of other versions as their documents show them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.schedulers.slurm import answers
from extras.doctor import slurm
from extras.doctor.types import Finding, worst
from workflow.study.site import Cache, Site

CAPTURED = Path(__file__).parents[2] / "captured" / "slurm-22.05"
SITE = Site(name="s", storage=Path("/nfs/s"), cache=Cache(path=Path("/local/s")), scheduler="slurm", walltime_s=3600.0)


def partitioned(partitions: Mapping[str, answers.Partition], nodes: Sequence[answers.Nodes], site: Site) -> list[Finding]:
    return list(slurm.judge_partitions(partitions, nodes, site))


def captured(name: str) -> str:
    return str(json.loads((CAPTURED / f"{name}.json").read_text())["stdout"])


def said(findings: object, words: str) -> Finding:
    """The one finding that has these words."""
    assert isinstance(findings, list | tuple)
    found = [finding for finding in findings if words in finding.text]
    assert len(found) == 1, (words, findings)
    return found[0]


def test_partitions_of_a_real_cluster() -> None:
    lines = answers.parse_partitions(captured("show-partition"))
    assert list(lines) == ["main", "urgent"]
    assert lines["main"]["MaxTime"] == "1-00:00:00"
    assert lines["main"]["Nodes"] == "n[1-4]"
    assert answers.default_partition(lines) == "main"
    nodes = answers.parse_nodes(captured("sinfo-exact"))
    assert (nodes[0].partition, nodes[0].count, nodes[0].cpus, nodes[0].gpus, nodes[0].gpu_model) == ("main", 4, 8, 8, "p100")
    assert nodes[0].usable
    findings = partitioned(lines, nodes, SITE)
    assert said(findings, "main (default): 4 nodes of 8 cores").level == "ok"
    assert worst(findings) == "ok"


OTHERS = """\
gpu|6|idle|64+|515000+|gpu:a100:4(S:0-1),gpu:v100:2(S:0-1)|a100,ib
gpu|2|drained*|64|515000|gpu:a100:4(S:0-1)|a100
mig|1|idle|64|515000|gpu:a100_1g.5gb:7,shard:10|(null)
cpu|100|allocated|128|257000|(null)|(null)
this line is not a line of sinfo
"""


def test_nodes_as_other_sites_have_them() -> None:
    nodes = answers.parse_nodes(OTHERS)
    assert [(group.partition, group.count, group.cpus, group.gpus, group.usable) for group in nodes] == [
        ("gpu", 6, 64, 6, True),
        ("gpu", 2, 64, 4, False),
        ("mig", 1, 64, 7, True),
        ("cpu", 100, 128, 0, True),
    ]


def gpu(**values: str) -> dict[str, dict[str, str]]:
    return {"gpu": {"PartitionName": "gpu", "State": "UP", "MaxTime": "2-00:00:00"} | values}


@pytest.mark.parametrize(
    ("lines", "asked", "words", "level"),
    [
        (gpu(), {}, "no default partition", "error"),
        (gpu(State="DOWN"), {"queue": "gpu"}, "is DOWN", "error"),
        (gpu(), {"queue": "other"}, "queue 'other' is no partition of this cluster", "error"),
        (gpu(), {"queue": "gpu", "device": "cuda"}, "does not say how many", "warning"),
    ],
)
def test_the_site_file_against_the_partition(lines: dict[str, dict[str, str]], asked: dict[str, object], words: str, level: str) -> None:
    site = replace(SITE, **asked)  # type: ignore[arg-type]
    assert said(partitioned(lines, answers.parse_nodes(OTHERS), site), words).level == level


@pytest.mark.parametrize("number", ["\N{SUPERSCRIPT TWO}", "9" * 401, "-1", "1" * 10])
def test_a_size_that_no_cluster_has_is_no_size(number: str) -> None:
    line = f"PartitionName=main State=UP Default=YES TotalNodes={number} MaxNodes={number} MaxTime={number}"
    found = answers.parse_partitions(line)
    assert partitioned(found, (), replace(SITE, walltime_s=60.0))
    assert answers.parse_nodes(f"main|{number}|idle|4|1000|gpu:{number}|x\nmain|4|idle|{number}|1000|(null)|x\n") == ()
