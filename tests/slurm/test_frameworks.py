"""The acceptance study of the frameworks: all that are installed here train one network on one and two nodes, each run a job of Slurm."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pytest

from containers.frameworks import FRAMEWORKS, load_framework
from containers.frameworks.environment import environment_of, what_is_missing
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.test_container_studies import Place

pytestmark = [pytest.mark.slow, pytest.mark.long]
FEWEST: Final = 10
"""Frameworks that the acceptance wants in the study."""
NODES: Final = (1, 2)
STUDY: Final = """
study: {{name}}
datasets:
  digits: {{{{source: sklearn-digits, size: 32, splits: {{{{test: 0.2}}}}, shards: 2}}}}
base: {{{{dataset: digits, model: lenet, batch_size: 32, threads: 1, steps: {{{{warmup: 2, measured: 10}}}}, repeats: 1}}}}
axes: {{{{nodes: [1, 2]}}}}
zip:
{rows}
baseline: {{{{nodes: 1}}}}
limits: {{{{walltime: 10m, init: 5m}}}}
"""


class Kind(NamedTuple):
    """What a row of the table is of."""

    framework: str
    backend: str
    strategy: str


Key = tuple[Kind, int]
"""Nodes."""
REFERENCE: Final = Kind("pytorch", "auto", "ddp")


def kinds_of(name: str) -> list[Kind]:
    """Each of its backends, by its own name where it has several, and each of its strategies."""
    can = load_framework(name).supports
    return [Kind(name, backend, strategy) for backend in can.backends[1:] or can.backends for strategy in can.strategies]


BARE: Final = [name for name in FRAMEWORKS if not load_framework(name).containers_only]
KINDS: Final = [kind for name in BARE for kind in kinds_of(name)]


def missing(kind: Kind) -> str | None:
    """Why it is not in the study."""
    spec = load_framework(kind.framework)
    if what_is_missing(spec, kind.strategy, kind.backend) is None:
        return None
    own, _ = environment_of(spec, kind.strategy, kind.backend) or (kind.framework, None)
    return f"framework {own} is not installed here: make framework NAME={own}"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """`records`; `told`: what `slipway check-frameworks` tells of the cell; `rows`: of table frameworks."""

    records: Mapping[Key, dict[str, Any]]
    told: Mapping[Key, dict[str, Any]]
    rows: Mapping[Kind, dict[str, str]]


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> Finished:
    """The whole study. Each run is a job; all end well, and nothing of them is left on a node."""
    installed = [kind for kind in KINDS if missing(kind) is None]
    if len({kind.framework for kind in installed}) < 2:
        pytest.skip("fewer than two frameworks are installed here: make framework NAME=jax")
    layouts = {name: load_framework(name).supports.layout[0] for name in BARE}
    keys = [{**kind._asdict(), "layout": layouts[kind.framework]} for kind in installed]
    rows = [f"  - {{{{{', '.join(f'{key}: {value}' for key, value in row.items())}}}}}" for row in keys]
    before = {node: set(cluster.processes(node)) for node in cluster.nodes}
    place = Place(cluster, "bare", f"frameworks{os.getpid()}", STUDY.format(rows="\n".join(rows)))
    records = {(kind_of(record["cell"]), record["cell"]["nodes"]): record for record in place.records()}
    assert sorted(records) == sorted((kind, nodes) for kind in installed for nodes in NODES)
    wait_until(lambda: all(set(cluster.processes(node)) <= before[node] for node in before), 60.0, "nothing of the runs is left")
    compared = place.command("workflow.commands.main", "check-frameworks", "study.yaml", "--site", "./site.yaml", "--json")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    verified = place.command("workflow.commands.main", "verify", "study.yaml", "--site", "./site.yaml")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    named = {record["cell"]["cell_id"]: key for key, record in records.items()}
    told = {named[one["cell_id"]]: one for group in json.loads(compared.stdout)["groups"] for one in group["cells"]}
    with (place.results / "tables" / "frameworks.csv").open() as file:
        table = {kind_of(row): row for row in csv.DictReader(file)}
    return Finished(records=records, told=told, rows=table)


def kind_of(keys: Mapping[str, Any]) -> Kind:
    """Of a cell, or of a row, which has those of these keys that differ in it."""
    return Kind(keys["framework"], keys.get("backend", "auto"), keys.get("strategy", "ddp"))


def test_the_study_has_ten_frameworks() -> None:
    left_out = {kind.framework for kind in KINDS if missing(kind) is not None}
    if len(BARE) - len(left_out) < FEWEST:
        pytest.skip(
            f"of {FEWEST} frameworks that the study should have {len(BARE) - len(left_out)} are installed here; not {sorted(left_out)}"
        )


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_a_framework_trains_the_network_of_the_others(finished: Finished, kind: Kind) -> None:
    """Equal first losses, equal parameters on all ranks at its end, PyTorch's norm, and a number in each cell of its row: `pytest -rP`
    prints them."""
    if why := missing(kind):
        pytest.skip(why)
    spec = load_framework(kind.framework)
    for nodes in NODES:
        record, told = finished.records[kind, nodes], finished.told[kind, nodes]
        training, like = record["training"], finished.records[REFERENCE, nodes]["training"]
        losses = " ".join(f"{loss:.7f}" for _, loss in told["losses"])
        checksum = f"{told['replicas']['checksum'][:12]} on {told['replicas']['ranks']}"
        sys.stdout.write(f"{nodes} nodes: losses {losses}, norm {training['parameter_norm']:.8f}, checksum {checksum}\n")
        assert [step for step, _ in told["losses"]] == list(range(5))
        assert told["same_network"]
        assert told["replicas"] == training["replicas"]
        assert (told["replicas"]["ranks"], told["replicas"]["apart"]) == (1 if spec.launcher == "single" else nodes, [])
        assert training["parameter_norm"] == pytest.approx(like["parameter_norm"], rel=1e-2 if spec.own_order else 1e-6)
        assert record["performance"]["samples"] == 10 * 32 * nodes
    row = finished.rows[kind]
    numbers = {name: row[name] for name in row if name.startswith("processes_")}
    assert sorted(numbers) == ["processes_1", "processes_2"]
    assert all(number[0].isdigit() for number in numbers.values()), numbers


def test_the_table_has_no_other_rows(finished: Finished) -> None:
    assert sorted(finished.rows) == sorted({kind for kind, _ in finished.records})
