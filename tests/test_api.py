"""What programs and notebooks read: `import slipway`."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import slipway
from base.errors import ConfigError, RecordError
from tests.workflow.report.builder import failed, make_cell, make_record, write_records, write_study
from workflow.report.study_tables import TABLES

BATCH = 32


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two cells: one with three runs of 0.1 s a step, and one of which the first run failed and the others are missing."""
    one, two = make_cell(batch_size=BATCH), make_cell(batch_size=BATCH, nodes=2)
    write_study(tmp_path / "s", [one, two], repeats=3)
    write_records(
        tmp_path / "s", [*(make_record(one, repeat, step_s=0.1 + repeat / 1e6, exclusive=False) for repeat in (1, 2, 3)), failed(two)]
    )
    return tmp_path / "s"


def test_each_run_is_a_row(results: Path) -> None:
    found = slipway.Study.load(results).results()
    assert found["status"].to_list().count("ok") == 3
    assert set(found["status"]) == {"ok", "oom", "missing"}
    assert found.filter(pl.col("status") == "ok")["rate_per_s"].to_list() == pytest.approx([BATCH / 0.1] * 3, rel=1e-3)


def test_each_cell_is_a_row_and_what_is_not_known_is_null(results: Path) -> None:
    one, two = slipway.Study.load(str(results)).cells().sort("nodes").to_dicts()
    assert (one["model"], one["optimizer.learning_rate"], one["runs"], one["measured_runs"]) == ("lenet", 0.01, 3, 3)
    assert one["rate_per_s"] == pytest.approx(BATCH / 0.1, rel=1e-3)
    assert one["rate_per_s_low"] <= one["rate_per_s"] <= one["rate_per_s_high"]
    assert one["step_p50_s"] == pytest.approx(0.1, rel=1e-3)
    assert (two["nodes"], two["measured_runs"], two["rate_per_s"], two["step_p50_s_high"]) == (2, 0, None, None)


def test_numbers_are_numbers_also_where_none_is_known(tmp_path: Path) -> None:
    cell = make_cell()
    write_study(tmp_path, [cell], repeats=1)
    write_records(tmp_path, [failed(cell)])
    assert slipway.Study.load(tmp_path).cells().schema["rate_per_s"] == pl.Float64


@pytest.mark.parametrize("name", TABLES)
def test_each_table_by_its_name(results: Path, name: str) -> None:
    found = slipway.Study.load(results).table(name)
    assert found.columns[-1] == "marks"
    assert found.schema["marks"] == pl.List(pl.String) or found.is_empty()


def test_marks_name_their_column(results: Path) -> None:
    rows = slipway.Study.load(results).table("times").to_dicts()
    assert any(mark == "samples_per_s: shared" for row in rows for mark in row["marks"])


def test_what_is_not_there_is_named(results: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'scalin' is no table; valid: .*did you mean 'scaling'"):
        slipway.Study.load(results).table("scalin")
    with pytest.raises(RecordError, match="nowhere"):
        slipway.Study.load(tmp_path / "nowhere").results()


def test_the_notebook_runs(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((Path(__file__).parents[1] / "examples" / "notebook" / "results.ipynb").read_text())
    monkeypatch.setenv("STUDY", str(results))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - the repository's own
    assert len(names["scaling"]) == len(names["cells"]) == 2
    assert names["chart"].to_dict()["encoding"]["y"]["field"] == "rate_per_s"
