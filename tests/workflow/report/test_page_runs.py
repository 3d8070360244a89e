"""The page's table of runs: every run is there, every number leads to its runs, and every link to a file that is there."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.workflow.report.builder import (
    collected,
    failed,
    make_cell,
    make_record,
    plausible_records,
    scaling_cells,
    write_records,
    write_study,
)
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import collect
from workflow.report.outputs import write_page
from workflow.report.page import MOST_DRAWN, page, places_of, runs_table

NASTY = ("a b", "x#y", "50%41", "q?z=1&w", "it's", 'say"hi"', "javascript:alert(1)", "<b>", "größe", "日本")


class Rows(HTMLParser):
    """Rows of all tables: their places, cells and links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids += [named["id"] or ""] if "id" in named else []
        if tag == "tr":
            self.rows.append({"in": (named.get("data-in") or "").split(), "cells": [], "links": []})
        elif tag in ("td", "th") and self.rows:
            self.rows[-1]["cells"].append("")
            self._open = True
        elif tag == "a" and self._open:
            self.rows[-1]["links"].append((len(self.rows[-1]["cells"]) - 1, named["href"]))

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1]["cells"][-1] += data

    @property
    def runs(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["in"]]


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    cells = scaling_cells(model=["lenet", "resnet18"], nodes=[1, 2])
    return collected(tmp_path / "digits", [*plausible_records(cells[:3]), failed(cells[3], 1), failed(cells[3], 2)], cells)


def test_each_run_stands_with_its_cell_in_words_its_nodes_and_its_marks(tmp_path: Path) -> None:
    record = make_record(make_cell(nodes=2), 1, oversubscribed=True, **{"performance.window_s": 3.0})
    (row,) = Rows(page(collected(tmp_path / "digits", [record], repeats=1, baseline={"nodes": 2}), {})).runs
    run, files, cell, processes, end, rate, step, _, marks, nodes, began = row["cells"]
    assert run == record["run_id"]
    assert cell == "lenet, batch 32, 2 nodes × 1"
    assert (processes, end, step, began, nodes) == ("2", "ok", "100", "2026-05-02 10:00:00", "node00, node01")
    assert float(rate) > 0
    assert marks == "shorta, oversubscribedb", "each with its letter"
    assert files == "record events logs all"


def test_every_number_of_a_table_leads_to_the_runs_of_its_cell(analysis: Analysis) -> None:
    parsed = Rows(page(analysis, {}))
    counts: dict[str, int] = {}
    for row in parsed.runs:
        for place in row["in"]:
            counts[place] = counts.get(place, 0) + 1
    speedup = [row for row in parsed.rows if "weak" in row["cells"]][:2]
    led = [href.removeprefix("#") for row in speedup for _, href in row["links"]]
    assert led == [f"cell-{cell.cell_id}" for cell in analysis.cells], "one row a model, one column a number of nodes"
    assert [counts[place] for place in led] == [3, 3, 3, 3]
    assert set(led) <= set(parsed.ids), "without the script the browser goes to the first of the rows"
    reached = {href for row in parsed.rows if not row["in"] for _, href in row["links"]}
    assert len(reached) > 4
    assert {href.removeprefix("#") for href in reached} <= counts.keys(), "each leads to one run at least"
    assert len(parsed.ids) == len(set(parsed.ids))


def test_of_the_numbers_of_a_row_that_lead_to_one_place_one_is_a_link(analysis: Analysis) -> None:
    times = page(analysis, {}).split('id="table-times"')[1].split("</table>")[0]
    rows = times.split("<tr>")[2:]
    assert [row.count("<a ") for row in rows] == [1] * 4
    assert [row.count('class="number"') > 6 for row in rows] == [True] * 4


def test_the_same_failure_stands_once_with_its_runs(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[2, 4])
    records = [failed(cell, repeat) for cell in cells for repeat in (1, 2, 3)]
    for number, record in enumerate(records):
        host = f"node{number:02d}"
        record["failed_rank"] |= {"rank": number, "host": host, "last_lines": f"allocating {number} GiB\nout of memory"}
        record["status_reason"] = f"rank {number} on {host}: oom"
    records[5] |= {"status_reason": "rank 5 on node05: another"}
    text = page(collected(tmp_path / "digits", records, cells), {})
    section = text.split('id="failures"')[1].split("</section>")[0]
    failures = Rows(section).rows[1:]
    assert [row["cells"][0] for row in failures] == ["5", "1"]
    assert section.count("out of memory") == 2
    assert all(record["run_id"] in failures[0]["cells"][-1] for record in records[:5])
    assert "0, 1, 2, 3, 4" in failures[0]["cells"]
    led = [row["cells"][0] for row in Rows(text).runs if "failure-1" in row["in"]]
    assert led == [record["run_id"] for record in records[:5]]


def test_a_footnote_leads_to_the_runs_that_carry_its_mark(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2])
    records = [make_record(cell, 1, oversubscribed=cell is cells[1]) for cell in cells]
    text = page(collected(tmp_path / "digits", records, cells, repeats=1), {})
    assert '</sup> <a href="#mark-oversubscribed">oversubscribed: nodes, processes or threads' in text
    assert [row["cells"][0] for row in Rows(text).runs if "mark-oversubscribed" in row["in"]] == [f"{cells[1]['cell_id']}-r1"]


def linked_files(html: Path) -> list[Path]:
    rows = Rows(html.read_text()).runs
    hrefs = [href for row in rows for _, href in row["links"]]
    assert all(re.fullmatch(r"(\.\./)*[\w.~%-]+(/[\w.~%-]+)*/?", href, re.ASCII) for href in hrefs)
    return [html.parent / unquote(href) for href in hrefs]


def with_files(directory: Path) -> None:
    """What a rank leaves beside its record."""
    for record in directory.glob("runs/*/attempts/[!.]*/record.json"):
        (record.parent / "logs").mkdir()
        (record.parent / "events-0.jsonl").write_text("{}")


def test_links_to_record_events_and_logs_hold_in_a_copy_elsewhere(tmp_path: Path) -> None:
    directory = tmp_path / "50% #1 \"é\" 'x'" / "digits"
    analysis = collected(directory, plausible_records(scaling_cells(nodes=[1, 2])))
    with_files(directory)
    write_page(analysis, directory, {})
    shutil.copytree(directory, tmp_path / "copy")
    shutil.rmtree(directory)
    files = linked_files(tmp_path / "copy" / "report.html")
    assert len(files) == 6 * 4
    assert all(path.exists() for path in files)


def test_links_of_two_studies_from_a_page_elsewhere(tmp_path: Path) -> None:
    for name in ("al pha", "om%65ga"):
        records = [{**record, "study": name} for record in plausible_records(scaling_cells(nodes=[1, 2]))]
        write_records(write_study(tmp_path / "results" / name, scaling_cells(nodes=[1, 2]), study=name), records)
        with_files(tmp_path / "results" / name)
    (tmp_path / "out").mkdir()
    analysis = analyse(collect([tmp_path / "results" / name for name in ("al pha", "om%65ga")]))
    write_page(analysis, tmp_path / "out", {})
    files = linked_files(tmp_path / "out" / "report.html")
    assert len(files) == 12 * 4
    assert all(path.exists() for path in files)
    rows = Rows((tmp_path / "out" / "report.html").read_text()).runs
    assert len({place for row in rows for place in row["in"] if place.startswith("cell-")}) == 4, "the same cell of two studies is two"


@pytest.mark.parametrize("name", NASTY)
def test_names_of_runs_and_cells_stay_text_and_their_links_stay_links(tmp_path: Path, name: str) -> None:
    cell = {**make_cell(), "cell_id": name}
    directory = write_study(tmp_path / "digits", [cell], repeats=1)
    write_records(directory, [{**make_record(cell), "run_id": f"{name}-r1"}])
    with_files(directory)
    write_page(analyse(collect([directory])), directory, {})
    html = directory / "report.html"
    (row,) = Rows(html.read_text()).runs
    assert row["cells"][0] == f"{name}-r1"
    assert all(path.exists() for path in linked_files(html))
    assert re.fullmatch(r"cell-[\w.~%-]+", row["in"][0], re.ASCII)


def test_a_run_without_a_record_has_no_link(tmp_path: Path) -> None:
    rows = Rows(page(collected(tmp_path / "digits", [], [make_cell()]), {})).runs
    assert [(row["cells"][4], row["links"]) for row in rows] == [("missing", [])] * 3


def test_a_run_whose_rank_never_started_has_no_link_to_events(tmp_path: Path) -> None:
    record = failed(make_cell(), **{"provenance.framework_version": None})
    (row,) = Rows(page(collected(tmp_path / "digits", [record], repeats=1), {})).runs
    assert row["cells"][1] == "record logs all"


def test_rows_beyond_the_first_are_folded_and_said_to_be(tmp_path: Path) -> None:
    cells = [make_cell(seed=seed) for seed in range(MOST_DRAWN + 2)]
    analysis = collected(tmp_path / "digits", [], cells, repeats=1)
    markup = runs_table(analysis, places_of(analysis), {}, None)
    drawn, folded = markup.split('<template id="runs-folded">')
    assert (drawn.count("<tr data-in"), folded.count("<tr data-in")) == (MOST_DRAWN, 2)
    assert f"{MOST_DRAWN} of {MOST_DRAWN + 2} runs are shown" in drawn


def test_a_run_that_was_not_measured_has_no_rate_among_those_that_were(tmp_path: Path) -> None:
    record = {**make_record(make_cell()), "status": "nan", "status_reason": "a loss that is not a number"}
    (row,) = Rows(page(collected(tmp_path / "digits", [record], repeats=1), {})).runs
    assert row["cells"][4:8] == ["nan", "\N{EN DASH}", "\N{EN DASH}", row["cells"][7]]


def test_a_mark_is_explained_once_and_has_the_same_letter_in_all_tables(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2])
    records = [make_record(cells[0], **{"performance.window_s": 3.0}), make_record(cells[1], oversubscribed=True)]
    text = page(collected(tmp_path / "digits", records, cells, repeats=1), {})
    assert text.count("nodes, processes or threads of a run shared cores") == 1
    letters = re.findall(r'<sup>(\w)</sup> (?:<a href="#mark-oversubscribed">)', text)
    assert len(letters) > 2
    assert len(set(letters)) == 1
    again = f"<sup>{letters[0]}</sup>"
    assert f'<li class=again>{again} <a href="#mark-oversubscribed">oversubscribed</a></li>' in text, "the runs name it"
    assert f"oversubscribed{again}" in text, "so does the row of the run"


def test_a_chapter_that_shows_nothing_is_left_out(tmp_path: Path) -> None:
    alone = page(collected(tmp_path / "one", plausible_records(scaling_cells(nodes=[1, 2]))), {})
    two = page(collected(tmp_path / "two", plausible_records(scaling_cells(framework=["pytorch", "jax"], nodes=[1, 2]))), {})
    shown = [set(re.findall(r'<section id="([\w-]+)"', text)) for text in (alone, two)]
    assert shown[1] - shown[0] == {"dlbench", "frameworks"}
    assert not {"failures", "warnings", "prediction", "precision"} & shown[0]
    assert all(f'id="{name}"' in alone for name in re.findall(r'href="#([\w.~%-]+)"', alone)), "no link leads to what was left out"


def test_a_note_that_all_rows_share_is_said_once(tmp_path: Path) -> None:
    text = page(collected(tmp_path / "digits", plausible_records(scaling_cells(nodes=[1, 2, 4]))), {})
    assert text.count("it ran on CPUs, which have no peak here") == 1
