"""What networks read from storage: needs by hand, for samples and tokens, and whether a place gives them."""

from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import collected, csv_rows, make_cell, make_record
from workflow.report.storage_table import PUBLISHED, Supply, storage, storage_by_rates, verdict
from workflow.report.study_tables import TABLES

BYTES = 200_000
SUPPLY = Supply(samples_per_s=8000, least_per_s=4000, bytes_per_s=1.6e9, sample_bytes=BYTES, method="measured here")


def record(cell: dict[str, Any], wait: float = 0.0, **more: Any) -> dict[str, Any]:
    """Steps of 0.1 s, on a dataset of 1,000 samples of BYTES."""
    stored = {"dataset.samples": 1000, "dataset.bytes": 1000 * BYTES, "performance.input_wait_s_mean": wait * 0.101}
    return make_record(cell, **{**stored, **more})


def test_the_need_is_rate_times_stored_bytes(tmp_path: Path) -> None:
    """32 samples each 0.1 s: 320/s, 64 MB/s, of the smallest cell of a series: on two nodes each process reads less."""
    cells = [make_cell(nodes=nodes, batch_size=32) for nodes in (2, 1)]
    analysis = collected(tmp_path, [record(cell, **({"step_s": 0.2} if cell["nodes"] == 2 else {})) for cell in cells], repeats=1)
    (row,) = csv_rows(TABLES["storage"](analysis))
    assert float(row["samples_per_s"]) == pytest.approx(320)
    assert (row["model"], row["batch_size"], float(row["sample_bytes"]), row["basis"]) == ("lenet", "32", BYTES, "measured, 1×1")
    assert [float(row[f"processes_{number}"]) for number in (1, 2, 4, 8)] == pytest.approx([64e6, 128e6, 256e6, 512e6])
    assert "verdict" not in row


def test_what_it_waited_for_input_is_no_less_need(tmp_path: Path) -> None:
    """A process that waits for three quarters of its time could read four times as much."""
    (row,) = csv_rows(storage(collected(tmp_path, [record(make_cell(batch_size=32), 0.75)], repeats=1), SUPPLY))
    assert (float(row["samples_per_s"]), float(row["input_wait_ratio"])) == (pytest.approx(320), pytest.approx(0.75))
    assert float(row["processes_1"]) == pytest.approx(4 * 64e6)
    assert float(row["fed"]) == pytest.approx(8000 / 1280)
    assert row["verdict"] == "enough for 6 of 8 processes"


def test_a_sample_of_tokens_is_a_sample(tmp_path: Path) -> None:
    """100,000 tokens/s of 500 in each sample."""
    cell = make_cell(framework="gpt", model="gpt", program={"name": "gpt", "command": ["train"], "unit": "tokens"}, batch_size=20)
    told = {"performance.tokens": 4_000_000, "performance.tokens_per_s": 100_000.0, "performance.samples": 8000}
    (row,) = csv_rows(storage(collected(tmp_path, [record(cell, **told)], repeats=1)))
    assert float(row["samples_per_s"]) == pytest.approx(200)
    assert float(row["processes_1"]) == pytest.approx(200 * BYTES)


def test_a_node_of_the_study_has_a_column(tmp_path: Path) -> None:
    table = storage(collected(tmp_path, [record(make_cell(gpus_per_node=12, batch_size=4))], repeats=1))
    assert [column.key for column in table.columns if column.key.startswith("processes_")] == [
        f"processes_{number}" for number in (1, 2, 4, 8, 12)
    ]


def test_the_smallest_cell_of_several_processes_tells_of_one(tmp_path: Path) -> None:
    (row,) = csv_rows(storage(collected(tmp_path, [record(make_cell(gpus_per_node=4, batch_size=8))], repeats=1)))
    assert float(row["samples_per_s"]) == pytest.approx(80), "320 samples each 0.1 s, of four"


def test_runs_that_read_no_samples_and_other_datasets_are_left_out(tmp_path: Path) -> None:
    tree = record(make_cell(batch_size=8), **{"dataset.samples": None})
    analysis = collected(tmp_path, [tree, record(make_cell(batch_size=16))], repeats=1)
    assert [row["batch_size"] for row in csv_rows(storage(analysis))] == ["16"]
    assert storage(analysis, SUPPLY, "ab" * 32).num_rows == 1
    assert storage(analysis, SUPPLY, "cd" * 32).num_rows == 0


def test_given_rates_and_published_ones() -> None:
    found = csv_rows(storage_by_rates({"alexnet": 200.0, "lenet": 1e6}, SUPPLY))
    assert [(row["model"], row["basis"]) for row in found] == [("alexnet", "given"), ("lenet", "given")]
    assert [float(row["processes_8"]) for row in found] == [320e6, 1.6e12]
    assert found[0]["verdict"] == "enough for 8 GPUs: 5 times their need"
    published = storage_by_rates({}, SUPPLY)
    assert [row["model"] for row in csv_rows(published)] == [f"resnet50 on {gpu}" for gpu in PUBLISHED]
    assert [round(float(row["samples_per_s"])) for row in csv_rows(published)] == [328, 920, 1786]
    assert "dlio_benchmark" in published.caption
    assert "dlio_benchmark" not in storage_by_rates({"alexnet": 1.0}, SUPPLY).caption


@pytest.mark.parametrize(
    ("fed", "least", "words"),
    [
        (40.0, 20.0, "enough for 8 GPUs: 5 times their need"),
        (22572.0, 22572.0, "enough for 8 GPUs: 2,822 times their need"),
        (8.0, 7.9, "enough for 8 GPUs: 1 times their need, but in the slowest pass for 7"),
        (7.99, 7.0, "enough for 7 of 8 GPUs"),
        (1.0, 0.5, "enough for 1 of 8 GPUs"),
        (0.25, 0.2, "too slow for one GPU: it gets 25% of what it can use"),
    ],
)
def test_verdicts(fed: float, least: float, words: str) -> None:
    assert verdict(fed, least, 8, "GPU", "GPUs") == words
