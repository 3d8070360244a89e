"""Model FLOP utilisation: in numbers that can be checked by hand, and never a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import GPU, collected, make_cell, make_record
from tests.workflow.report.test_tables import cells_of, marks_of
from workflow.report.analysis import Analysis
from workflow.report.table import Table
from workflow.report.tables import TABLES
from workflow.run.record.model import validate_record

TOLD = {"training.flop_per_unit": 6e9, "training.precision": "bf16"}


def gpt(**keys: Any) -> dict[str, Any]:
    program = {"name": "gpt", "command": ["train"], "unit": "tokens"}
    return make_cell(**{"framework": "gpt", "model": "gpt", "program": program, "device": "cuda", "gpus_per_node": 2, **keys})


def table(path: Path, cell: dict[str, Any], **changes: Any) -> tuple[Table, Analysis]:
    """Of one run at 40,000 tokens/s."""
    record = make_record(cell, **{"performance.tokens": 1_600_000, "performance.tokens_per_s": 40e3, "nodes": nodes(cell), **changes})
    validate_record(record)
    analysis = collected(path / "m", [record], repeats=1)
    return TABLES["utilisation"](analysis), analysis


def nodes(cell: dict[str, Any], *models: str) -> list[dict[str, Any]]:
    """The nodes of a cell, their GPUs of these models, one after the other."""
    found = make_record(cell)["nodes"]
    for node in found:
        node["gpus"] = [{**gpu, "model": models[index % len(models)] if models else GPU} for index, gpu in enumerate(node["gpus"])]
    return list(found)


def test_the_flop_of_a_token_times_the_rate_over_the_peak(tmp_path: Path) -> None:
    """6 GFLOP x 40,000 tokens/s on two H100: 120 TFLOP/s each, of 989.4 in bf16."""
    found, analysis = table(tmp_path, gpt(), **TOLD)
    assert analysis.frame["mfu"].to_list() == [pytest.approx(120 / 989.4)]
    assert cells_of(found, "mfu") == ["12.1 %"]
    assert (cells_of(found, "flop_per_s"), cells_of(found, "peak_flop_per_s")) == (["120"], ["989.4"])
    assert (cells_of(found, "flop_source"), cells_of(found, "arithmetic"), cells_of(found, "note")) == (["program"], ["bf16"], [""])
    assert f"{GPU}: NVIDIA H100 architecture white paper" in found.caption
    assert "No MFU" not in found.caption
    assert cells_of(found, "peak_memory_bytes") == ["0.293"]
    assert [column.title for column in found.columns][5] == "GFLOP per token"


@pytest.mark.parametrize(("mode", "passes"), [("train", 3), ("infer", 1)])
def test_a_network_of_ours_has_two_flop_for_each_multiply_add_and_pass(tmp_path: Path, mode: str, passes: int) -> None:
    cell = make_cell(device="cuda", precision="tf32", mode=mode)
    found, analysis = table(tmp_path, cell, model_macs=4_000_000_000, **{"training.flop_per_unit": 1.0})
    (flop,), (rate,) = analysis.frame["flop_per_unit"], analysis.frame["rate_per_s"]
    assert (flop, cells_of(found, "flop_source")) == (passes * 8e9, ["model"])
    assert analysis.frame["mfu"].to_list() == [pytest.approx(flop * rate / 494.7e12)]


@pytest.mark.parametrize(("mode", "flop"), [("train", 2 * (3 * 4e9 - 0.5e9)), ("infer", 2 * 4e9)])
def test_the_gradient_of_what_the_first_layer_reads_is_not_counted(tmp_path: Path, mode: str, flop: float) -> None:
    cell = make_cell(device="cuda", precision="tf32", mode=mode)
    found, analysis = table(tmp_path, cell, model_macs=4_000_000_000, model_first_macs=500_000_000)
    assert analysis.frame["flop_per_unit"].to_list() == [flop]
    assert "of records of earlier versions with it" not in found.caption


def test_a_record_of_a_version_that_counted_it_says_so(tmp_path: Path) -> None:
    found, _ = table(tmp_path, make_cell(device="cuda", precision="tf32"), model_macs=4_000_000_000)
    assert "without the gradient of what the first layer reads (of records of earlier versions with it), times" in found.caption
    assert "earlier versions" not in table(tmp_path / "program", gpt(), **TOLD)[0].caption


@pytest.mark.parametrize(
    ("cell", "changes", "why"),
    [
        (gpt(device="cpu"), TOLD, "it ran on CPUs, whose peak is not told"),
        (gpt(), {}, "the FLOP of a token are not known: a program tells them by start(flop_per_unit=...)"),
        (gpt(), {**TOLD, "training.precision": None}, "the precision of its matrices is not known: a program tells it by"),
        (gpt(), {**TOLD, "nodes": nodes(gpt(), "NVIDIA X1")}, "the peak of NVIDIA X1 in bf16 is not known here"),
        (gpt(), {**TOLD, "nodes": nodes(gpt(), GPU, "NVIDIA H200")}, f"the peak of {GPU} + NVIDIA H200 in bf16 is not known here"),
        (gpt(), {"model_macs": 10**9}, "the FLOP of a token are not known"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, cell: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    found, analysis = table(tmp_path, cell, **changes)
    assert analysis.frame["mfu"].to_list() == [None]
    assert cells_of(found, "note")[0].startswith(why)
    assert f"No MFU where {why}" in found.caption


def test_more_than_the_peak_is_marked_as_impossible(tmp_path: Path) -> None:
    found, analysis = table(tmp_path, gpt(), **{**TOLD, "training.precision": "fp32"})
    assert cells_of(found, "mfu") == ["179.4 %"]
    assert marks_of(found, "mfu") == [{"impossible"}]
    assert "impossible" in analysis.cells[0].marks
    assert "which no GPU reaches" in found.footnotes()[0][1]


def test_runs_that_tell_different_flop_have_no_number(tmp_path: Path) -> None:
    records = [
        make_record(gpt(), repeat, **{"performance.tokens": 10**6, "performance.tokens_per_s": 1e4, **TOLD, "training.flop_per_unit": flop})
        for repeat, flop in ((1, 6e9), (2, 7e9))
    ]
    found = TABLES["utilisation"](collected(tmp_path / "m", records, repeats=2))
    assert cells_of(found, "flop_per_unit") == ["–"]
    assert cells_of(found, "mfu") == ["–"]
    assert cells_of(found, "note") == ["the runs of a cell differ in their GPUs, or in what their program tells"]


def test_a_network_of_ours_that_reads_tokens_has_its_flop_per_token(tmp_path: Path) -> None:
    """6 FLOP for each of 142.4 million multiply-adds at 40,000 tokens/s on one H100: 34.2 TFLOP/s, of 989.4 in bf16."""
    text = {"source": "text", "path": "/text", "sequence_length": 1024}
    cell = make_cell(device="cuda", precision="bf16", model="gpt2-small", dataset_spec=text, gpus_per_node=1)
    found, analysis = table(tmp_path, cell, model_macs=142_406_400)
    assert analysis.frame["unit"].to_list() == ["tokens"]
    assert analysis.frame["mfu"].to_list() == [pytest.approx(6 * 142_406_400 * 40e3 / 989.4e12)]
    assert cells_of(found, "flop_source") == ["model"]
    assert [column.title for column in found.columns][5] == "GFLOP per token"


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_multiply_adds_of_a_token_are_none_of_a_sample(tmp_path: Path, unit: str) -> None:
    """A program that trains a network of ours on tokens, and counts sequences, has no MFU: a sequence has many tokens."""
    text = {"source": "text", "path": "/text", "sequence_length": 1024}
    program = {"name": "gpt", "command": ["train"], "unit": unit}
    _, analysis = table(tmp_path, gpt(model="gpt2-small", dataset_spec=text, program=program), model_macs=142_406_400)
    expected = 6 * 142_406_400 if unit == "tokens" else None
    assert analysis.frame["flop_per_unit"].to_list() == [expected]
