"""Records of runs on an H200, tests/captured/records: valid, and with the numbers in the tables that they had there."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected
from tests.workflow.report.test_study_tables import cells_of
from tests.workflow.run.valid import validate_record
from workflow.report.study_tables import TABLES

CAPTURED = Path(__file__).parents[2] / "captured" / "records"


def record(name: str) -> dict[str, Any]:
    """As if it were one of a study of these tests."""
    value: dict[str, Any] = json.loads((CAPTURED / f"h200-{name}.json").read_text())
    return {**value, "study": "digits-scaling"}


@pytest.mark.parametrize("path", sorted(CAPTURED.glob("*.json")), ids=lambda path: path.stem)
def test_they_are_valid_and_tell_of_one_gpu_by_its_uuid(path: Path) -> None:
    found = json.loads(path.read_text())
    validate_record(found)
    (gpu,) = found["nodes"][0]["gpus"]
    assert (gpu["model"], gpu["uuid"][:4], found["device"]) == ("NVIDIA H200", "GPU-", "cuda")
    assert found["provenance"].get("gpu_uuid", gpu["uuid"]) in (gpu["uuid"], None)
    parts = sum(seconds for step, seconds in found["steps_s"].items() if step not in ("login", "assign"))
    assert parts == pytest.approx(found["run_s"], rel=0.01)


def test_the_utilisation_is_that_of_the_peak_of_an_h200(tmp_path: Path) -> None:
    """24.5 GFLOP x 4,545 images/s = 111.5 TFLOP/s, of 989.5; 624.8 MFLOP x 245,544 tokens/s = 153.4; fp32 of JAX is that of CUDA cores."""
    analysis = collected(tmp_path / "m", [record(name) for name in ("resnet50", "gpt-fsdp2", "jax-lenet")], repeats=1)
    table = TABLES["utilisation"](analysis)
    assert cells_of(table, "mfu") == ["11.3 %", "15.5 %", "1.7 %"]
    assert cells_of(table, "flop_per_s") == ["111", "153", "1.14"]
    assert cells_of(table, "peak_flop_per_s") == ["989.5", "989.5", "67.00"]
    assert cells_of(table, "flop_source") == ["model", "program", "model"]
    assert "NVIDIA H200: NVIDIA H200 data sheet" in table.caption
    found = record("resnet50")
    left = (found["provenance"]["gpu_memory_bytes"] - found["training"]["peak_memory_bytes"]) / 2**30
    assert cells_of(table, "gpu_busy_ratio")[0] == "100.0 %"
    assert cells_of(table, "memory_left_bytes")[0] == f"{left:.0f}"


def test_a_gpu_that_worked_all_the_time_says_so_and_is_not_marked(tmp_path: Path) -> None:
    found = record("resnet50")
    (gpu,) = found["nodes"][0]["load"]["during"]["gpus"]
    assert (gpu["busy_ratio_mean"], gpu["mhz_mean"], gpu["others_max"], gpu["throttled"]) == (1.0, 1980.0, 0, [])
    assert found["performance"]["window_steps_ratio"] == pytest.approx(1.0, abs=1e-3)
    (cell,) = collected(tmp_path / "m", [found], repeats=1).cells
    assert cell.marks == {"short"}


def test_a_card_that_was_full_is_a_row_with_its_reason(tmp_path: Path) -> None:
    table = TABLES["failures"](collected(tmp_path / "m", [record("out-of-memory")], repeats=1))
    assert cells_of(table, "end") == ["oom"]
    (reason,) = cells_of(table, "reason")
    assert reason.startswith("rank 0 on local-0 ran out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB.")


def test_a_loss_scaler_leaves_out_the_first_update() -> None:
    """Its first factor is too large: the second loss is still that of the network as it began."""
    scaled, plain = (dict(record(name)["training"]["first_losses"]) for name in ("lenet-fp16", "jax-lenet"))
    assert scaled[0] == pytest.approx(plain[0], rel=1e-3)
    assert scaled[1] > 1.5 * plain[1]
