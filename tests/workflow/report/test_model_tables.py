"""Tables of the networks: of a study, of networks that are named, and with what is not known left out."""

from pathlib import Path
from typing import Any

import pytest

from containers.models import build
from containers.models.facts import NETWORKS
from tests.workflow.report.builder import DATASET, collected, make_cell, make_record
from workflow.report.formats import FORMATS, to_values
from workflow.report.model_tables import convolutions, model_facts
from workflow.report.study_tables import TABLES


def rows(table: Any) -> list[dict[str, Any]]:
    return list(to_values(table)["rows"])


def test_the_facts_of_all_networks() -> None:
    found = {row["model"]: row for row in rows(model_facts(NETWORKS))}
    assert list(found) == list(NETWORKS)
    googlenet = found["googlenet"]
    assert (googlenet["macs"], googlenet["published_macs"], googlenet["source"]) == (1_582_671_872, 1.43e9, "Sze et al. 2017, table II")
    assert (googlenet["conv"], googlenet["conv_depth"]) == (57, 21)
    assert found["alexnet-caffe"]["flop_per_step"] == 2 * (3 * found["alexnet-caffe"]["macs"] - 55 * 55 * 96 * 3 * 11 * 11)
    assert found["gpt2-small"]["flop_per_step"] == 1024 * 6 * found["gpt2-small"]["macs"]
    assert found["lenet"]["published_macs"] is None


def test_a_study_has_the_networks_that_it_trains_with_its_own_input(tmp_path: Path) -> None:
    """The classes follow from the multiply-adds of a record; a cell without one has the published input, and says so."""
    model = build("lenet", 1, (32, 32), 37)
    cells = [make_cell(batch_size=size, mode=mode) for size, mode in ((2, "train"), (4, "train"), (4, "infer"))]
    cells += [make_cell(model="alexnet"), make_cell(model="my-own", framework="mine")]
    records = [make_record(cell, model_macs=model.macs, model_first_macs=model.first_macs) for cell in cells[:3]]
    analysis = collected(tmp_path / "nets", records, cells)
    found = rows(TABLES["model-facts"](analysis))
    assert [(row["model"], row["input"], row["batch_size"], row["mode"]) for row in found] == [
        ("lenet", "1×32×32, 37 classes", 2, "train"),
        ("lenet", "1×32×32, 37 classes", 4, "train"),
        ("lenet", "1×32×32, 37 classes", 4, "infer"),
        ("alexnet", "3×224×224, 1000 classes (as published)", 32, "train"),
    ]
    assert found[1]["flop_per_step"] == 2 * found[0]["flop_per_step"] == 4 * 2 * (3 * model.macs - model.first_macs)
    assert found[2]["flop_per_step"] == 4 * 2 * model.macs
    assert [row["flop_per_unit"] for row in rows(TABLES["utilisation"](analysis))] == [
        row["flop_per_step"] / row["batch_size"] for row in found[:3]
    ]
    ways = rows(TABLES["convolutions"](analysis))
    assert [(row["layer"], row["batch_size"]) for row in ways if row["model"] == "lenet"] == [
        ("conv1", 2), ("conv2", 2), ("conv1", 4), ("conv2", 4),
    ]  # fmt: skip


def test_the_gradient_of_the_images_is_counted_where_it_is_asked_for(tmp_path: Path) -> None:
    model = build("lenet", 1, (32, 32), 10)
    cells = [make_cell(), make_cell(input_gradient=True)]
    records = [
        make_record(cell, model_macs=model.macs, model_first_macs=first) for cell, first in zip(cells, (model.first_macs, 0), strict=True)
    ]
    analysis = collected(tmp_path / "inputs", records, cells)
    found = rows(TABLES["model-facts"](analysis))
    assert [(row["input_gradient"], row["flop_per_step"]) for row in found] == [
        (False, 32 * 2 * (3 * model.macs - model.first_macs)), (True, 32 * 6 * model.macs),
    ]  # fmt: skip
    assert [row["flop_per_unit"] for row in rows(TABLES["utilisation"](analysis))] == [row["flop_per_step"] / 32 for row in found]
    assert [row["input_gradient"] for row in rows(TABLES["times"](analysis))] == ["False", "True"]


@pytest.mark.parametrize("macs", [1, 10**15 + 1, None])
def test_multiply_adds_of_another_network_tell_of_no_input(tmp_path: Path, macs: int | None) -> None:
    cell = make_cell(dataset_spec={**DATASET, "size": [32, 32]})
    analysis = collected(tmp_path / "other", [make_record(cell, model_macs=macs)], [cell])
    assert [row["input"] for row in rows(TABLES["model-facts"](analysis))] == ["1×28×28, 10 classes (as published)"]


def test_tables_without_a_network_are_empty(tmp_path: Path) -> None:
    cell = make_cell(model="my-own", framework="mine", dataset_spec={"source": "from-the-future"})
    analysis = collected(tmp_path / "none", [make_record(cell)], [cell])
    for name in ("model-facts", "convolutions"):
        table = TABLES[name](analysis)
        assert table.num_rows == 0
        assert all(to_text(table) for to_text in FORMATS.values())
    assert [row["layer"] for row in rows(convolutions(["fcn5", "alexnet"]))] == [f"conv{number}" for number in range(1, 6)]


@pytest.mark.parametrize("name", TABLES)
def test_records_of_a_framework_that_is_gone_are_read(tmp_path: Path, name: str) -> None:
    """As of torch7, which an earlier version had."""
    table = TABLES[name](collected(tmp_path / "old", [make_record(make_cell(framework=framework)) for framework in ("torch7", "pytorch")]))
    named = [row["framework"] for row in rows(table) if "framework" in row]
    assert ("torch7" in named) == (bool(named) and name != "framework-facts")
