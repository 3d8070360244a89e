"""report.html: complete and closed: nothing runs in it but our script, nothing is fetched, its links lead to places in it or to files
beside it, and its table of runs has them all."""

import base64
import hashlib
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.workflow.report.builder import (
    analysed,
    collected,
    failed,
    make_cell,
    make_record,
    plausible_records,
    scaling_cells,
    write_records,
    write_study,
)
from tests.workflow.report.test_study_tables import hostile
from workflow.report.analysis import Analysis
from workflow.report.outputs import write_page
from workflow.report.page import MAX_DRAWN, SCRIPT, findings, page, places_of, runs_table, tiles, warnings
from workflow.report.study_tables import TABLES
from workflow.report.table_type import estimate_text
from workflow.run.record.rate import NOT_COMPARED

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9" fill="white"/><text>plot</text></svg>'
SVGS = dict.fromkeys(("throughput", "efficiency", "budget", "step_time", "loss"), SVG)
LOADS = {"src", "srcset", "data", "poster", "background", "action", "formaction", "ping", "manifest", "style"}


class Parsed(HTMLParser):
    """Elements, attributes, and the text of script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inside: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("script", "style"):
            self.inside[self.tags[-1]] = self.inside.get(self.tags[-1], "") + data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")


def text_of(analysis: Analysis) -> str:
    """The page, with spaces at which lines may break."""
    return page(analysis, {}).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    cells = scaling_cells(batch_size=[32], nodes=[1, 2, 4])
    records = plausible_records(cells[:2]) + [failed(cells[2], repeat) for repeat in (1, 2)]
    return collected(tmp_path / "digits", records, cells)


def test_the_page_holds_summary_tables_plots_failures_and_provenance(analysis: Analysis) -> None:
    text = page(analysis, SVGS)
    summary = ("digits-scaling: scaling report", "6 / 9", "failed rows", "lenet · batch 32 on 2 processes", "2026-05-02")
    rows = ("1 (baseline)", "rank 1 on node01: oom", "out of memory", "Debian GNU/Linux 12", "Intel(R) Xeon(R)")
    for words in (*summary, *rows, "slipway run study.yaml", "python -m workflow.report all"):
        assert words in text, words
    assert text.count("<svg ") == 5
    assert text.count("<table") == 11
    parsed = Parsed(text)
    assert parsed.tags.count("h1") == 1
    links = [value for tag, name, value in parsed.attributes if tag == "a" and name == "href"]
    targets = {value.removeprefix("#") for value in links if value.startswith("#")}
    assert targets <= {value for _, name, value in parsed.attributes if name == "id"}


def assert_closed(text: str) -> Parsed:
    """Nothing is fetched, nothing runs but our script, and every link is to a place in the page or to a file below the directory of it."""
    parsed = Parsed(text)
    assert not [entry for entry in parsed.attributes if entry[1] in LOADS or entry[1].startswith("on")]
    assert {name for _, name, _ in parsed.attributes if name.endswith("href")} == {"href"}
    links = [value for _, name, value in parsed.attributes if name == "href"]
    assert not [link for link in links if not re.fullmatch(r"#[\w.~%-]+|(runs|tables)/[\w.~%/-]+", link, re.ASCII)]
    assert not set(parsed.tags) & {"link", "img", "image", "iframe", "object", "embed", "base", "form", "video", "audio", "source", "use"}
    assert parsed.tags.count("script") == 1
    assert parsed.inside["script"] == SCRIPT
    assert not re.search(r"@import|url\(", parsed.inside["style"])
    return parsed


def test_nothing_is_fetched_and_nothing_runs(analysis: Analysis) -> None:
    parsed = assert_closed(page(analysis, SVGS))
    policies = [value for tag, name, value in parsed.attributes if tag == "meta" and name == "content" and "default-src" in value]
    digest = base64.b64encode(hashlib.sha256(parsed.inside["style"].encode()).digest()).decode()
    script = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policies == [
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; script-src 'sha256-{script}'"
    ]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = page(hostile(tmp_path), SVGS)
    assert_closed(text)
    assert "\x1b" not in text
    assert "=1+1&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_name_between_backticks_is_code(tmp_path: Path) -> None:
    text = page(collected(tmp_path / "digits", [make_record(make_cell(), 1)]), SVGS)
    assert "<code>" in text
    assert "`" not in re.sub("<script>.*?</script>|<style>.*?</style>|<pre.*?</pre>", "", text, flags=re.DOTALL)


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    text = page(collected(tmp_path / "digits", [], [make_cell()], repeats=1), {})
    for words in ("no comparison with a baseline yet", "not run yet", "1 cell, 1 run, site local"):
        assert words in text
    (row,) = Rows(text).runs
    assert (row["cells"][4], row["links"]) == ("missing", [])


def test_warnings_of_runs_are_listed_once(tmp_path: Path) -> None:
    cell = make_cell()
    records = [make_record(cell, repeat, warnings=["ranks disagree on <b>x</b>"]) for repeat in (1, 2, 3)]
    text = page(collected(tmp_path / "digits", records), {})
    assert text.count("ranks disagree on &lt;b&gt;x&lt;/b&gt;") == 1
    assert '<a href="#warning-1">3</a>' in text


def test_warnings_that_differ_in_numbers_are_one_row(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes) for nodes in range(1, 60)]
    seen = [[f"slow step {cell['nodes']}: 0.{cell['nodes']} s", f"slow step {cell['nodes'] + 1}: 3.5 s"] for cell in cells]
    records = [make_record(cell, warnings=said) for cell, said in zip(cells, seen, strict=True)]
    records[-1]["warnings"].append("another")
    found, _ = warnings(collected(tmp_path / "digits", records))
    assert sorted(row[0].text for row in found.rows) == ["1", "59"], "a run is counted once, and the rarer one is not cut away"
    shown = {row[2].text for row in found.rows}
    assert shown == {"another", "slow step 1: 0.1 s"}
    assert "and 53 more" in next(row[1].text for row in found.rows if row[0].text == "59")


def test_two_clusters_stand_side_by_side(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2])
    for site in ("alps", "jura"):
        records = [{**record, "site": site} for record in plausible_records(cells)]
        write_records(write_study(tmp_path / site / "digits", cells, site=site), records)
    text = page(analysed(tmp_path / "alps" / "digits", tmp_path / "jura" / "digits"), {})
    assert "12 runs, sites alps and jura" in text
    assert "<h3>alps</h3>" in text
    assert "<td>jura</td>" in text
    assert "<title>digits-scaling: scaling report</title>" in text


def test_the_best_speed_up_is_said_to_be_chosen_with_an_interval_that_allows_for_it(tmp_path: Path) -> None:
    analysis = collected(tmp_path / "digits", plausible_records(scaling_cells(nodes=[1, 2, 4, 8]), noise=0.02))
    text = text_of(analysis)
    assert "This is the largest of 3 measured speed-ups; its 95 % confidence interval allows for that choice" in text
    assert "<span>best of 3 speed-ups: 8 processes against 1 process</span>" in text
    best = analysis.primary[-1].speedup
    assert f"{estimate_text(best.among(3))} times the throughput of 1 process " in text
    assert f"{estimate_text(best)} times" not in text


def test_ranks_of_the_best_speed_up_that_nobody_compared_are_named_at_the_head(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2, 4])
    for nodes, named in ((4, True), (2, False)):
        records = [{**record, "warnings": [NOT_COMPARED] * (record["cell"]["nodes"] == nodes)} for record in plausible_records(cells)]
        said = findings(collected(tmp_path / str(nodes), records, cells), {})[0]
        assert ("nobody knows whether their ranks trained one network together" in said) is named


@pytest.mark.parametrize(("noise", "repeats", "kind"), [(0.01, 3, ""), (0.6, 3, "unsure"), (0.01, 1, "unsure")])
def test_the_first_card_is_the_speed_up_with_its_interval(tmp_path: Path, noise: float, repeats: int, kind: str) -> None:
    analysis = collected(tmp_path / "s", plausible_records(scaling_cells(nodes=[1, 2]), noise=noise, repeats=repeats), repeats=repeats)
    first, second, third = tiles(analysis)[:3]
    assert (first.value[-1], second.text, third.text) == ("\N{MULTIPLICATION SIGN}", "its efficiency", "runs measured")
    assert (first.kind, second.kind) == (kind, kind), "grey where the interval includes 1, or there is none"
    assert first.interval.startswith("95 % interval " if repeats > 1 else "no interval: 1 run")
    assert ("includes 1" in first.interval) is (noise > 0.1)
    assert first.interval in text_of(analysis)
    assert " %" not in page(analysis, {}).split("<nav")[0].split("</header>")[1], "no line begins with the sign"


def test_the_largest_is_the_largest_of_all_that_the_table_shows(tmp_path: Path) -> None:
    weak = [(nodes, 32, rate) for nodes, rate in ((1, 100.0), (2, 150.0), (4, 300.0))]
    strong = [(1, 128, 80.0), (2, 64, 160.0)]  # the cell of four nodes is 128 in all: 3.75 times as fast as one node with 128
    cells = [(make_cell(nodes=nodes, batch_size=batch), rate) for nodes, batch, rate in [*weak, *strong]]
    records = [make_record(cell, repeat, step_s=cell["global_batch_size"] / rate) for cell, rate in cells for repeat in (1, 2, 3)]
    analysis = collected(tmp_path / "digits", records)
    table = [value.text for row in TABLES["speedup"](analysis).rows for value in row]
    assert any(text.startswith("3.750 ") for text in table)
    text = page(analysis, {})
    assert "3.75\N{MULTIPLICATION SIGN}" in text
    numbers = sum(" (" in text and "baseline" not in text for text in table)
    assert f"largest of {numbers} measured speed-ups" in text


def timed(*steps_s: float, **changes: Any) -> list[dict[str, Any]]:
    """Records of 1 and 2 nodes with these steps, three runs of each; `changes` are those of the baseline."""
    cells = zip(scaling_cells(nodes=[1, 2]), steps_s, (changes, {}), strict=True)
    return [make_record(cell, repeat, step_s=step_s * (1 + repeat / 1000), **own) for cell, step_s, own in cells for repeat in (1, 2, 3)]


def on(jobs: str, hosts: str) -> list[dict[str, Any]]:
    """Records whose runs were in these jobs and on these hosts."""
    records = plausible_records(scaling_cells(nodes=[1, 2]))
    for place, record in enumerate(records):
        record |= {"job_id": jobs[place % 3], "nodes": [{**node, "hostname": hosts[place % 3]} for node in record["nodes"]]}
    return records


SCALED = plausible_records(scaling_cells(nodes=[1, 2]))
ON_TWO, OF_ONE = "lenet \N{MIDDLE DOT} batch 32 on 2 processes: ", "times the throughput of 1 process"
BEHIND = "Behind a cell stand"
ON_ONE_NODE = "all runs were on the same nodes: these intervals"


@pytest.mark.parametrize(
    ("records", "study", "said", "unsaid"),
    [
        (SCALED, {}, "<span>speed-up: 2 processes against 1 process</span>", "largest of"),
        (SCALED, {}, f"{ON_TWO}1.706 \N{PLUS-MINUS SIGN}0.079 {OF_ONE} (efficiency 85.3 %, weak scaling).", "no proof of a"),
        (plausible_records(scaling_cells(nodes=[1, 2]), noise=0.6), {}, "no proof of a speed-up", "slower than the baseline"),
        (timed(0.1, 0.37), {}, "The whole interval is below 1, so this is slower than the baseline.", "includes 1"),
        (SCALED[::3], {"repeats": 1}, f"{ON_TWO}1.700 {OF_ONE} (efficiency 85.0 %, weak scaling; n=1, no CI).", "Behind a cell stand "),
        (SCALED[::3], {"repeats": 1}, "Behind a cell stands 1 measured run, from", "allows for that choice"),
        (
            [{**record, "exclusive": False} for record in SCALED],
            {},
            "It has the marks shared\N{MODIFIER LETTER SMALL A}: see the footnotes",
            "The largest",
        ),
        (on("123", "aaa"), {}, f"{BEHIND} 3 measured runs, from 3 allocations, on 1 set of nodes. In 2 of the 2 cells with", "on 3 sets"),
        (on("111", "abc"), {}, f"{BEHIND} 3 measured runs, from 1 allocation, on 3 sets of nodes.</p>", "on the same nodes"),
        (SCALED[:4], {}, f"In 1 of the 1 cell with several measured runs {ON_ONE_NODE}", "of the 2 cells"),
        (SCALED[:5], {"baseline": {"nodes": 2}}, "<span>run not run yet</span>", "runs not run yet"),
        (SCALED[:5], {"baseline": {"nodes": 2}}, "speed-up: 1 process against 2 processes</span>", "1 processes"),
        (SCALED[:5], {"baseline": {"nodes": 2}}, "on 1 process: ", "1 processes"),
    ],
)
def test_what_the_head_says_of_the_best_speed_up(
    tmp_path: Path, records: list[dict[str, Any]], study: dict[str, Any], said: str, unsaid: str
) -> None:
    text = text_of(collected(tmp_path / "digits", records, **study))
    assert said in text
    assert unsaid not in text


def test_nodes_of_one_machine_are_said_to_be_shares_of_it(tmp_path: Path) -> None:
    analysis = collected(tmp_path / "digits", plausible_records(scaling_cells(nodes=[1, 2])))
    said = "Nodes are shares of one machine, not machines: its cores in 2 parts, of which 1 node has one and 2 nodes have all."
    assert said in page(analysis, {})
    assert said in TABLES["speedup"](analysis).caption
    assert said in TABLES["times"](analysis).caption
    records = [{**record, "scheduler": "slurm"} for record in plausible_records(scaling_cells(nodes=[1, 2]))]
    assert "shares of one machine" not in page(collected(tmp_path / "cluster", records), {})


def test_warnings_that_differ_in_nodes_and_programs_are_one_row(tmp_path: Path) -> None:
    records = [make_record(make_cell(nodes=2), repeat) for repeat in (1, 2, 3)]
    for used, record, hosts in zip((0.47, 0.9, 0.66), records, ("n1 n2", "n3 n4", "n2 n3"), strict=True):
        for node, host in zip(record["nodes"], hosts.split(), strict=True):
            node["name"] = node["hostname"] = host
        names = "python of root" if used > 0.6 else "python of root, sh of root"
        busy = f"{hosts.split()[0]}: others used {used:.2g} of 1 core while it measured ({names})"
        record["warnings"] = [f"{hosts.replace(' ', ', ')}: the scheduler granted 8 CPUs, and 2 may be used", "odd: it is", busy]
        record["busy"] = [busy]
    analysis = collected(tmp_path / "digits", records)
    assert [(row[0].text, row[2].text) for row in warnings(analysis)[0].rows] == [
        ("3", "n1, n2: the scheduler granted 8 CPUs, and 2 may be used"),
        ("3", "odd: it is"),
        ("3", "n1: others used 0.47 of 1 core while it measured (python of root, sh of root)"),
    ]


# The table of all runs: cell, nodes, marks, and links from numbers to runs and from runs to files.


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
def two_models(tmp_path: Path) -> Analysis:
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


def test_every_number_of_a_table_leads_to_the_runs_of_its_cell(two_models: Analysis) -> None:
    parsed = Rows(page(two_models, {}))
    counts: dict[str, int] = {}
    for row in parsed.runs:
        for place in row["in"]:
            counts[place] = counts.get(place, 0) + 1
    speedup = [row for row in parsed.rows if "weak" in row["cells"]][:2]
    led = [href.removeprefix("#") for row in speedup for _, href in row["links"]]
    assert led == [f"cell-{cell.cell_id}" for cell in two_models.cells], "one row a model, one column a number of nodes"
    assert [counts[place] for place in led] == [3, 3, 3, 3]
    assert set(led) <= set(parsed.ids), "without the script the browser goes to the first of the rows"
    reached = {href for row in parsed.rows if not row["in"] for _, href in row["links"]}
    assert len(reached) > 4
    assert {href.removeprefix("#") for href in reached} <= counts.keys(), "each leads to one run at least"
    assert len(parsed.ids) == len(set(parsed.ids))


def test_of_the_numbers_of_a_row_that_lead_to_one_place_one_is_a_link(two_models: Analysis) -> None:
    times = page(two_models, {}).split('id="table-times"')[1].split("</table>")[0]
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
    two_models = collected(directory, plausible_records(scaling_cells(nodes=[1, 2])))
    with_files(directory)
    write_page(two_models, directory, {})
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
    two_models = analysed(*(tmp_path / "results" / name for name in ("al pha", "om%65ga")))
    write_page(two_models, tmp_path / "out", {})
    html = tmp_path / "out" / "report.html"
    files = linked_files(html)
    assert len(files) == 12 * 4
    assert all(path.exists() for path in files)
    rows = Rows(text := html.read_text()).runs
    assert all(f"<{tag}>al pha and om%65ga: scaling report</{tag}>" in text for tag in ("title", "h1"))
    assert len({place for row in rows for place in row["in"] if place.startswith("cell-")}) == 4, "the same cell of two studies is two"


@pytest.mark.parametrize("name", NASTY)
def test_names_of_runs_and_cells_stay_text_and_their_links_stay_links(tmp_path: Path, name: str) -> None:
    cell = {**make_cell(), "cell_id": name}
    directory = write_study(tmp_path / "digits", [cell], repeats=1)
    write_records(directory, [{**make_record(cell), "run_id": f"{name}-r1"}])
    with_files(directory)
    write_page(analysed(directory), directory, {})
    html = directory / "report.html"
    (row,) = Rows(html.read_text()).runs
    assert row["cells"][0] == f"{name}-r1"
    assert all(path.exists() for path in linked_files(html))
    assert re.fullmatch(r"cell-[\w.~%-]+", row["in"][0], re.ASCII)


def test_a_run_whose_rank_never_started_has_no_link_to_events(tmp_path: Path) -> None:
    record = failed(make_cell(), **{"provenance.framework_version": None})
    (row,) = Rows(page(collected(tmp_path / "digits", [record], repeats=1), {})).runs
    assert row["cells"][1] == "record logs all"


def test_rows_beyond_the_first_are_folded_and_said_to_be(tmp_path: Path) -> None:
    cells = [make_cell(seed=seed) for seed in range(MAX_DRAWN + 2)]
    two_models = collected(tmp_path / "digits", [], cells, repeats=1)
    markup = runs_table(two_models, places_of(two_models), {}, None)
    drawn, folded = markup.split('<template id="runs-folded">')
    assert (drawn.count("<tr data-in"), folded.count("<tr data-in")) == (MAX_DRAWN, 2)
    assert f"{MAX_DRAWN} of {MAX_DRAWN + 2} runs are shown" in drawn


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
