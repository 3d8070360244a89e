"""What the runs took: every attempt once, by how it ended."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from base.errors import RecordError
from tests.workflow.report.builder import GPU, collected, failed, make_cell, make_record, write_records, write_study
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import collect, read_records
from workflow.report.collect import write_records as write_parquet
from workflow.report.formats import to_csv
from workflow.report.outputs import read_or_collect
from workflow.report.tables import TABLES


def rows(analysis: Analysis) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(TABLES["hours"](analysis)))))


def test_every_attempt_counts_once_by_how_it_ended(tmp_path: Path) -> None:
    cell = make_cell(nodes=2, gpus_per_node=2, device="cuda")
    directory = write_study(tmp_path / "s", [cell], repeats=3)
    record = make_record(cell, run_s=3600.0, attempt=3)
    records = [failed(cell, status="killed", attempt=1, run_s=1800.0), failed(cell, status="oom", attempt=2, run_s=360.0), record]
    records += [failed(cell, 2, status="storage", run_s=720.0), failed(cell, 3, status="nan", run_s=72.0)]
    write_records(directory, records)
    (row,) = rows(analyse(collect([directory])))
    assert [float(row[f"{part}_process_h"]) for part in ("measured", "failed", "prevented", "repeated")] == pytest.approx(
        [4, 0.08, 2.8, 0.4]
    )
    assert float(row["process_h"]) == pytest.approx(7.28)
    assert float(row["gpu_h"]) == pytest.approx(7.28)
    assert GPU in str(analyse(collect([directory])).frame["hardware"][0])
    assert "In all 7.28 process hours, 2.80 of them prevented; 7.28 GPU hours" in TABLES["hours"](analyse(collect([directory]))).caption


def test_attempts_of_a_run_whose_newest_record_is_torn_keep_their_hours(tmp_path: Path) -> None:
    cell = make_cell(nodes=2, gpus_per_node=2, device="cuda")
    directory = write_study(tmp_path / "s", [cell], repeats=1)
    ends = ["killed", "oom", "nan"]
    write_records(directory, [failed(cell, status=end, attempt=number, run_s=3600.0) for number, end in enumerate(ends, 1)])
    run = directory / "runs" / f"{cell['cell_id']}-r1"
    (run / "attempts" / "3" / "record.json").write_text("{")
    (run / "record.json").write_text("{")
    analysis = analyse(collect([directory]))
    assert analysis.frame["status"].to_list() == ["unreadable"]
    (row,) = rows(analysis)
    parts = {part: float(row[f"{part}_process_h"]) for part in ("measured", "failed", "prevented", "repeated", "aside")}
    assert parts == {"measured": 0, "failed": 4, "prevented": 4, "repeated": 0, "aside": 0}
    assert float(row["gpu_h"]) == 8


@pytest.mark.parametrize("others", [True, False])
def test_attempts_that_lie_beside_another_have_a_column_of_their_own(tmp_path: Path, others: bool) -> None:
    cell = make_cell(nodes=2)
    directory = write_study(tmp_path / "s", [cell], repeats=1)
    write_records(directory, [failed(cell, status="killed", run_s=1800.0)])
    attempts = directory / "runs" / f"{cell['cell_id']}-r1" / "attempts"
    (attempts / "1").rename(attempts / "1.lost-0badcafe")
    (attempts / "1.node-1").mkdir()
    (attempts / "2.lost-0badcafe").mkdir()
    (attempts / "2.lost-0badcafe" / "record.json").write_bytes((attempts / "1.lost-0badcafe" / "record.json").read_bytes())
    if others:
        write_records(directory, [make_record(cell, run_s=3600.0)])
    (row,) = rows(analyse(collect([directory])))
    assert (float(row["aside_process_h"]), float(row["measured_process_h"])) == (1, 2 * others), "that of attempt 1, in its own place"


def test_on_cpus_gpu_hours_are_none_and_not_missing(tmp_path: Path) -> None:
    cells = [make_cell(), make_cell(nodes=2)]
    directory = write_study(tmp_path / "s", cells, repeats=1)
    write_records(directory, [make_record(cells[0], run_s=3600.0)])
    (row,) = rows(analyse(collect([directory])))
    assert (float(row["process_h"]), float(row["gpu_h"])) == (1, 0)


def test_a_collection_of_another_version_is_made_anew(tmp_path: Path) -> None:
    cell = make_cell()
    directory = write_study(tmp_path / "s", [cell], repeats=1)
    write_records(directory, [make_record(cell)])
    collection = collect([directory])
    path = write_parquet(collection, directory)
    collection.frame.drop("prevented_s").write_parquet(path, metadata={"slipway": "[]"})
    with pytest.raises(RecordError, match="other columns than this version"):
        read_records(path)
    assert "prevented_s" in read_or_collect([directory], directory).frame.columns


def test_a_run_that_ended_ok_without_a_rate_is_a_failed_row_everywhere(tmp_path: Path) -> None:
    cell = make_cell()
    records = [make_record(cell, repeat, run_s=3600.0) for repeat in (1, 2)] + [make_record(cell, 3, run_s=1800.0, performance=None)]
    analysis = collected(tmp_path / "s", records)
    assert analysis.summary.closing_line() == "2 of 3 runs ok, 1 failed (1 not measured)"
    assert (analysis.summary.ok, analysis.summary.failed_rows) == (2, 1)
    (failure,) = csv.DictReader(io.StringIO(to_csv(TABLES["failures"](analysis))))
    assert (failure["run"], failure["end"]) == (records[2]["run_id"], "ok")
    assert failure["reason"] == "ended ok, but no rate could be measured"
    (row,) = rows(analysis)
    assert [float(row[f"{part}_process_h"]) for part in ("measured", "failed")] == [2.0, 0.5]
    (times,) = csv.DictReader(io.StringIO(to_csv(TABLES["times"](analysis))))
    assert times["runs"] == "2/3"
