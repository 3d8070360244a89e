"""The acceptance study of the frameworks: all that are installed here train one network on one and two nodes, each run a job of Slurm."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from containers.frameworks import FRAMEWORKS, load_framework
from containers.frameworks.environment import environment_of, what_is_missing
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.test_container_studies import Place

pytestmark = [pytest.mark.slow, pytest.mark.long]
BACKENDS: Final = {"keras": ("tensorflow", "jax", "torch")}
KINDS: Final = [
    (name, backend) for name in FRAMEWORKS if not load_framework(name).containers_only for backend in BACKENDS.get(name, ("auto",))
]
"""Frameworks that run without a container, each with its backends."""
NODES: Final = (1, 2)
REFERENCE: Final = ("pytorch", "auto")
STUDY: Final = """
study: {{name}}
datasets:
  digits: {{{{source: sklearn-digits, size: 32, splits: {{{{test: 0.2}}}}, shards: 2}}}}
base: {{{{dataset: digits, model: lenet, batch_size: 32, steps: {{{{warmup: 2, measured: 10}}}}, repeats: 1}}}}
axes: {{{{nodes: [1, 2]}}}}
zip:
{rows}
baseline: {{{{nodes: 1}}}}
limits: {{{{walltime: 10m, init: 5m}}}}
"""
Key = tuple[str, str, int]
"""Framework, backend, nodes."""


def missing(name: str, backend: str) -> str | None:
    """Why it is not in the study."""
    spec = load_framework(name)
    if what_is_missing(spec, backend=backend) is None:
        return None
    own, _ = environment_of(spec, backend=backend) or (name, None)
    return f"framework {own} is not installed here: make framework NAME={own}"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """`records`; `told`: what `slipway check-frameworks` tells of the cell; `rows`: of table frameworks, by framework and backend."""

    records: Mapping[Key, dict[str, Any]]
    told: Mapping[Key, dict[str, Any]]
    rows: Mapping[tuple[str, str], dict[str, str]]


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> Finished:
    """The whole study. Each run is a job; all end well, and nothing of them is left on a node."""
    installed = [kind for kind in KINDS if missing(*kind) is None]
    if len(installed) < 2:
        pytest.skip("fewer than two frameworks are installed here: make framework NAME=jax")
    layouts = {name: load_framework(name).supports.layout[0] for name, _ in installed}
    rows = [f"  - {{{{framework: {name}, backend: {backend}, layout: {layouts[name]}}}}}" for name, backend in installed]
    before = {node: set(cluster.processes(node)) for node in cluster.nodes}
    place = Place(cluster, "bare", f"frameworks{os.getpid()}", STUDY.format(rows="\n".join(rows)))
    records = {key_of(record["cell"]): record for record in place.records()}
    assert sorted(records) == sorted((*kind, nodes) for kind in installed for nodes in NODES)
    wait_until(lambda: all(set(cluster.processes(node)) <= before[node] for node in before), 60.0, "nothing of the runs is left")
    compared = place.command("workflow.commands.main", "check-frameworks", "study.yaml", "--site", "./site.yaml", "--json")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    verified = place.command("workflow.commands.main", "verify", "study.yaml", "--site", "./site.yaml")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    keys = {record["cell"]["cell_id"]: key for key, record in records.items()}
    told = {keys[one["cell_id"]]: one for group in json.loads(compared.stdout)["groups"] for one in group["cells"]}
    with (place.results / "tables" / "frameworks.csv").open() as file:
        table = {(row["framework"], row.get("backend", "auto")): row for row in csv.DictReader(file)}
    return Finished(records=records, told=told, rows=table)


def key_of(cell: Mapping[str, Any]) -> Key:
    return cell["framework"], cell.get("backend", "auto"), cell["nodes"]


@pytest.mark.parametrize(("name", "backend"), KINDS)
def test_a_framework_trains_the_network_of_the_others(finished: Finished, name: str, backend: str) -> None:
    """Equal first losses, equal parameters on all ranks at its end, the norm of PyTorch's, and a number in each cell of its row."""
    if why := missing(name, backend):
        pytest.skip(why)
    spec = load_framework(name)
    for nodes in NODES:
        record, told = finished.records[name, backend, nodes], finished.told[name, backend, nodes]
        assert [step for step, _ in told["losses"]] == list(range(5))
        assert told["same_network"]
        assert told["replicas"] == record["training"]["replicas"]
        assert (told["replicas"]["ranks"], told["replicas"]["apart"]) == (1 if spec.launcher == "single" else nodes, [])
        like = finished.records[*REFERENCE, nodes]["training"]
        assert record["training"]["parameter_norm"] == pytest.approx(like["parameter_norm"], rel=1e-2 if spec.own_order else 1e-6)
        assert record["performance"]["samples"] == 10 * 32 * nodes
    row = finished.rows[name, backend]
    numbers = {name: row[name] for name in row if name.startswith("processes_")}
    assert sorted(numbers) == ["processes_1", "processes_2"]
    assert all(number[0].isdigit() for number in numbers.values()), numbers


def test_the_table_has_no_other_rows(finished: Finished) -> None:
    assert sorted(finished.rows) == sorted({key[:2] for key in finished.records})
