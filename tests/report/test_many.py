"""What is done otherwise where there are many runs: read by several processes, tables for people cut."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path

import pytest

from base.errors import RecordError
from tests.report.builder import collected, make_cell, make_record, scaling_cells, write_records, write_study
from workflow.report import formats, readers
from workflow.report.collect import collect
from workflow.report.formats import FORMATS
from workflow.report.tables import TABLES

CELLS = scaling_cells(batch_size=[1, 2, 3], nodes=[1, 2])


@pytest.fixture
def study(tmp_path: Path) -> Path:
    directory = write_study(tmp_path / "digits", CELLS, repeats=1)
    write_records(directory, [make_record(cell, **{"warnings": ["w"] * (cell["nodes"] - 1)}) for cell in CELLS[:-1]])
    torn = directory / "runs" / f"{CELLS[0]['cell_id']}-r1" / "record.json"
    torn.write_bytes(torn.read_bytes()[:1000])
    return directory


def test_several_processes_read_what_one_reads(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = collect([study]).frame
    assert set(alone["status"]) == {"ok", "unreadable", "missing"}
    monkeypatch.setattr(readers, "CHUNK", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert collect([study]).frame.equals(alone)


def test_a_process_that_dies_is_told_and_no_table_is_made(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RecordError, match=r"the process that read 2 records from .* ended before"):
        collect([study])


def test_tables_for_people_show_the_first_rows_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES["times"](collected(tmp_path / "digits", [make_record(make_cell(nodes=nodes)) for nodes in (1, 2, 4)]))
    whole = {suffix: to_text(table) for suffix, to_text in FORMATS.items()}
    monkeypatch.setattr(formats, "MOST_ROWS", 2)
    assert len(list(csv.reader(io.StringIO(FORMATS["csv"](table))))) == 4
    for suffix in ("md", "tex", "html"):
        assert "The first" not in whole[suffix]
        assert "The first 2 of 3 rows; all are in tables/times.csv." in FORMATS[suffix](table)
