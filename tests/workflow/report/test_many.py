"""What is done otherwise where there are many runs: read by several processes, tables for people cut."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import RecordError
from tests.workflow.report.builder import collected, make_cell, make_record, scaling_cells, write_records, write_study
from workflow.report.collect import collect
from workflow.report.formats import FORMATS, MOST_ROWS
from workflow.report.record_reader import read_runs
from workflow.report.tables import TABLES

pytestmark = pytest.mark.processes

CELLS = scaling_cells(batch_size=[1, 2, 3], nodes=[1, 2])
RUNS = sorted(f"{cell['cell_id']}-r1" for cell in CELLS)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    directory = write_study(tmp_path / "digits", CELLS, repeats=1)
    write_records(directory, [make_record(cell, **{"warnings": ["w"] * (cell["nodes"] - 1)}) for cell in CELLS[:-1]])
    torn = directory / "runs" / f"{CELLS[0]['cell_id']}-r1" / "record.json"
    torn.write_bytes(torn.read_bytes()[:1000])
    return directory


def test_several_processes_read_what_one_reads(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(collect([study]).frame["status"]) == {"ok", "unreadable", "missing"}
    alone = read_runs(study / "runs", RUNS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert read_runs(study / "runs", RUNS, chunk=2, alone=0).equals(alone)


def test_a_process_that_dies_is_told_and_no_table_is_made(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RecordError, match=r"the process that read 2 records from .* ended before"):
        read_runs(study / "runs", RUNS, chunk=2, alone=0)


def test_tables_for_people_show_the_first_rows_and_say_so(tmp_path: Path) -> None:
    table = TABLES["times"](collected(tmp_path / "digits", [make_record(make_cell(nodes=nodes)) for nodes in (1, 2, 4)]))
    columns = (replace(column, values=[*column.values] * 334, marks=[*column.marks] * 334) for column in table.columns)
    many = replace(table, columns=tuple(columns))
    assert len(many.rows) == MOST_ROWS + 2
    assert len(list(csv.reader(io.StringIO(FORMATS["csv"](many))))) == 1 + len(many.rows)
    for suffix in ("md", "tex", "html"):
        assert "The first" not in FORMATS[suffix](table)
        assert "The first 1000 of 1002 rows; all are in tables/times.csv." in FORMATS[suffix](many)
