"""A study of which each row is a framework, and what has to be alike in them."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pytest

from containers.frameworks import load_framework
from tests.slurm.place import Place

NODES: Final = (1, 2)
STUDY: Final = """
study: {name}
datasets:
  digits: {{source: sklearn-digits, size: 32, splits: {{test: 0.2}}, shards: 2}}
base: {{dataset: digits, model: lenet, batch_size: 32, threads: 1, steps: {{warmup: 2, measured: 10}}, repeats: 1}}
axes: {{nodes: [1, 2]}}
zip:
{rows}
baseline: {{nodes: 1}}
limits: {{walltime: 10m, init: 5m}}
"""


class Kind(NamedTuple):
    """What a row is of."""

    framework: str
    backend: str = "auto"
    strategy: str = "ddp"


Key = tuple[Kind, int]
"""Nodes."""
REFERENCE: Final = Kind("pytorch")


def kinds_of(name: str) -> list[Kind]:
    """Each of its backends, by its own name where it has several, and each of its strategies."""
    can = load_framework(name).supports
    return [Kind(name, backend, strategy) for backend in can.backends[1:] or can.backends for strategy in can.strategies]


def kind_of(keys: Mapping[str, Any]) -> Kind:
    """Of a cell, or of a row of a table, which has those of these keys that differ in it."""
    return Kind(**{name: keys[name] for name in Kind._fields if name in keys})


def study_of(name: str, kinds: Sequence[Kind]) -> str:
    found = [{**kind._asdict(), "layout": load_framework(kind.framework).supports.layout[0]} for kind in kinds]
    return STUDY.format(name=name, rows="\n".join(f"  - {{{', '.join(f'{key}: {value}' for key, value in row.items())}}}" for row in found))


@dataclass(frozen=True, kw_only=True)
class Finished:
    """`records`; `told`: what `slipway check-frameworks` tells of the cell; `rows`: of table frameworks."""

    records: Mapping[Key, dict[str, Any]]
    told: Mapping[Key, dict[str, Any]]
    rows: Mapping[Kind, dict[str, str]]


def finish(place: Place, kinds: Sequence[Kind]) -> Finished:
    """Run the study, every cell of which ends well, is of the same network, and is verified."""
    records = {(kind_of(record["cell"]), record["cell"]["nodes"]): record for record in place.records()}
    assert sorted(records) == sorted((kind, nodes) for kind in kinds for nodes in NODES)
    compared = place.command("workflow.commands.main", "check-frameworks", "study.yaml", "--site", "./site.yaml", "--json")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    verified = place.command("workflow.commands.main", "verify", "study.yaml", "--site", "./site.yaml")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    keys = {record["cell"]["cell_id"]: key for key, record in records.items()}
    told = {keys[one["cell_id"]]: one for group in json.loads(compared.stdout)["groups"] for one in group["cells"]}
    with (place.results / "tables" / "frameworks.csv").open() as file:
        rows = {kind_of(row): row for row in csv.DictReader(file)}
    assert sorted(rows) == sorted(kinds)
    return Finished(records=records, told=told, rows=rows)


def check_row(finished: Finished, kind: Kind) -> None:
    """Equal first losses, equal parameters on all ranks at its end, PyTorch's norm, and a number in each cell of its row. `pytest -rP`
    shows what is written."""
    spec = load_framework(kind.framework)
    for nodes in NODES:
        record, told = finished.records[kind, nodes], finished.told[kind, nodes]
        training, like = record["training"], finished.records[REFERENCE, nodes]["training"]
        losses = " ".join(f"{loss:.7f}" for _, loss in told["losses"])
        checksum = f"{told['replicas']['checksum'][:12]} on {told['replicas']['ranks']}"
        sys.stdout.write(f"{'-'.join(kind)} {nodes} nodes: losses {losses}, norm {training['parameter_norm']:.8f}, checksum {checksum}\n")
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
