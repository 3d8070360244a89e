"""The plots: what they draw (their data), and that they can be drawn."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
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
from workflow.report.outputs import write_all
from workflow.report.page import inline
from workflow.report.plots import (
    MAX_ABOVE,
    MAX_BARS,
    MAX_CURVES,
    MAX_LINES,
    PLOTS,
    clock,
    finished,
    log_scale,
    overview,
    throughput,
    to_json,
    to_svg,
)
from workflow.report.shared_columns import SEPARATOR

pytestmark = pytest.mark.slow  # rendering: every plot is drawn for real

SVG = "{http://www.w3.org/2000/svg}"


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All data rows of a chart."""
    found: list[dict[str, Any]] = [row for rows in spec.get("datasets", {}).values() for row in rows]

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("values"), list) and node["values"] and isinstance(node["values"][0], dict):
                found.extend(node["values"])
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk({key: value for key, value in spec.items() if key != "datasets"})
    return found


def test_throughput_draws_every_cell_its_interval_and_the_ideal_line(tmp_path: Path) -> None:
    cells = scaling_cells(batch_size=[32], nodes=[1, 2, 4])
    analysis = collected(tmp_path / "digits", plausible_records(cells))
    rows = values(throughput(analysis))
    measured = {row["processes"]: row for row in rows if row["kind"] == "measured"}
    ideal = {row["processes"]: row["value"] for row in rows if row["kind"] == "ideal"}
    rates = [cell.rate_per_s for cell in analysis.cells]
    assert [measured[count]["value"] for count in (1, 2, 4)] == [rate.value for rate in rates if rate]
    assert measured[4]["low"] < measured[4]["value"] < measured[4]["high"]
    assert ideal == {1: pytest.approx(measured[1]["value"]), 4: pytest.approx(4 * measured[1]["value"])}


@pytest.mark.parametrize("counts", [[1, 2, 4], [1, 3, 4], [7]])
@pytest.mark.parametrize("name", ["throughput", "efficiency"])
def test_whiskers_of_several_lines_stand_beside_one_another(tmp_path: Path, name: str, counts: list[int]) -> None:
    cells = scaling_cells(batch_size=[16, 32, 64, 128], nodes=counts)
    spec = PLOTS[name](collected(tmp_path / "digits", plausible_records(cells), baseline={"nodes": counts[0]}))
    rows = [row for row in values(spec) if row["kind"] == "measured"]
    assert len({row["x"] for row in rows}) == len(rows) == 4 * len(counts)
    for row in rows:
        assert min(counts, key=lambda count: abs(math.log2(row["x"] / count))) == row["processes"], "it stands at its own number"
    factors = {(row["line"], round(row["x"] / row["processes"], 9)) for row in rows}
    assert len(factors) == 4, "a line is moved as a whole, so that its slope is what it was"
    assert spec["layer"][1]["encoding"]["x"]["field"] == "x"


def test_a_single_line_stands_at_its_numbers(tmp_path: Path) -> None:
    records = [{**record, "scheduler": "slurm"} for record in plausible_records(scaling_cells(nodes=[1, 2, 4]))]
    rows = values(throughput(collected(tmp_path / "digits", records)))
    assert {(row["x"], row["processes"]) for row in rows} == {(count, count) for count in (1, 2, 4)}


def test_efficiency_has_the_line_of_75_percent(tmp_path: Path) -> None:
    spec = PLOTS["efficiency"](collected(tmp_path / "digits", plausible_records(scaling_cells(nodes=[1, 2]))))
    assert [row["value"] for row in values(spec) if row["kind"] == "limit"] == [0.75]


def test_many_lines_of_several_models_get_a_panel_each(tmp_path: Path) -> None:
    cells = scaling_cells(model=["lenet", "resnet18"], batch_size=[16, 32, 64, 128], nodes=[1, 2])
    spec = throughput(collected(tmp_path / "digits", plausible_records(cells, repeats=1), repeats=1))
    assert {row["panel"] for row in values(spec)} == {"lenet", "resnet18"}
    assert {row["label"] for row in values(spec)} == {f"batch {size}" for size in (16, 32, 64, 128)}


def test_what_is_too_much_for_a_picture_is_cut_and_said(tmp_path: Path) -> None:
    cells = scaling_cells(batch_size=list(range(1, MAX_LINES + 6)), nodes=[1])
    analysis = collected(tmp_path / "digits", plausible_records(cells, repeats=1), repeats=1)
    assert f"the first {MAX_LINES} of {MAX_LINES + 5} lines" in str(throughput(analysis)["title"])
    assert f"the first {MAX_BARS} of" in str(PLOTS["budget"](analysis)["title"])
    assert len({row["run"] for row in values(PLOTS["loss"](analysis))}) == MAX_CURVES


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_without_measurements_says_so(tmp_path: Path, name: str) -> None:
    analysis = collected(tmp_path / "digits", [failed(make_cell())])
    assert re.search("no (run|comparison|program|cell)", to_json(PLOTS[name](analysis)))


def test_every_plot_is_an_svg_that_loads_nothing(tmp_path: Path) -> None:
    hostile = 'x"><script>alert(1)</script> http://example.invalid/a.png'
    cells = scaling_cells(batch_size=[32], nodes=[1, 2], model=["lenet", "resnet18"])
    analysis = collected(tmp_path / "digits", [{**record, "cell": {**record["cell"]}} for record in plausible_records(cells)])
    for name, plot in PLOTS.items():
        spec = plot(analysis)
        spec["title"] = {"text": hostile} if "title" in spec else spec.get("title")
        svg = to_svg({key: value for key, value in spec.items() if value is not None}, name)
        root = ElementTree.fromstring(svg)
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert not tags & {"script", "image", "style", "foreignObject", "use", "a"}, name
        assert not [key for element in root.iter() for key in element.attrib if "href" in key or key == "style" or key.startswith("on")]
        ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
        assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= ids, "clips still have their shapes"
        assert all(one.startswith(name) for one in ids)
        texts = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
        assert texts.strip(), name
        placed = inline(svg, hostile)
        assert 'fill="white"' not in placed.split("<g", 1)[0]
        assert "<script" not in placed


def test_the_overview_shows_both_panels(tmp_path: Path) -> None:
    svg = to_svg(overview(collected(tmp_path / "digits", plausible_records(scaling_cells(nodes=[1, 2])))), "overview")
    assert all(word in svg for word in ("Throughput", "Efficiency", "lenet · batch 32"))
    assert svg.count("graphics-symbol") > 10, "there are marks, not only axes"


def test_a_key_in_which_only_cells_without_a_number_differ_is_in_no_label(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2])
    other = make_cell(optimizer={"name": "sgd", "learning_rate": 1e18, "momentum": 0.9, "weight_decay": 0})
    analysis = collected(tmp_path / "digits", [*plausible_records(cells), failed(other, status="nan")], [*cells, other])
    assert {row["label"] for row in values(throughput(analysis))} == {f"lenet{SEPARATOR}batch 32"}


def test_details_that_go_along_with_another_key_are_in_no_label(tmp_path: Path) -> None:
    steps = {"train": {"warmup": 5, "measured": 100}, "infer": {"warmup": 5, "measured": 200}}
    cells = [make_cell(mode=mode, steps=steps[mode], nodes=nodes) for mode in steps for nodes in (1, 2)]
    analysis = collected(tmp_path / "digits", plausible_records(cells))
    assert {row["label"] for row in values(throughput(analysis))} == {f"lenet{SEPARATOR}{mode}{SEPARATOR}batch 32" for mode in steps}


@pytest.mark.parametrize("name", ["throughput", "step_time", "loss"])
def test_long_labels_are_drawn_whole(tmp_path: Path, name: str) -> None:
    programs = [f"a-program-with-a-very-long-name-of-its-own-{number}" for number in (1, 2)]
    cells = [make_cell(framework=framework, comm_hook=hook) for framework in programs for hook in ("none", "fp16")]
    analysis = collected(tmp_path / "digits", plausible_records(cells))
    svg = to_svg(PLOTS[name](analysis), name)
    text = "".join(element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}tspan"))
    text += "".join(element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text"))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert all(program in text for program in programs)
    assert text.count("batch 32") >= 4
    assert text.count("hook fp16") >= 2


def test_what_only_infers_has_no_training_loss(tmp_path: Path) -> None:
    cells = [make_cell(mode=mode, nodes=1) for mode in ("train", "infer")]
    rows = values(PLOTS["loss"](collected(tmp_path / "digits", plausible_records(cells))))
    assert {row["run"] for row in rows} == {f"lenet{SEPARATOR}train{SEPARATOR}batch 32{SEPARATOR}1\N{MULTIPLICATION SIGN}1"}


@pytest.mark.parametrize("value", [6.95, 320.0, 1e-5, 10.0, 123456.0])
def test_a_logarithmic_axis_of_one_value_has_ticks_to_read_it_by(value: float) -> None:
    chart = alt.Chart(alt.InlineData(values=[{"v": value}])).mark_point().encode(y=alt.Y("v:Q", title=None, **log_scale([value])))
    assert len(re.findall(r"<text[^>]*>[^<]+</text>", to_svg(finished(chart), "one"))) >= 3


def test_a_panel_of_one_value_has_an_axis_of_more() -> None:
    """All scales are of one description: with a domain from 2500 to 2500 the ticks of all lie one upon the other."""
    wide, narrow = ([100.0, 800.0], [10.0, 90.0]), ([100.0, 800.0], [2500.0])
    assert [log_scale(*panels, own_per_panel=True)["scale"].to_dict()["nice"] for panels in (wide, narrow)] == [False, True]


def test_a_long_whisker_is_cut_off_and_the_chart_says_so(tmp_path: Path) -> None:
    cells = scaling_cells(batch_size=[32, 64], nodes=[1, 2])
    records = plausible_records(cells[:3])
    records += [make_record(cells[3], repeat, step_s=step_s) for repeat, step_s in ((1, 0.2), (2, 0.04), (3, 0.05))]
    spec = PLOTS["efficiency"](collected(tmp_path / "digits", records))
    measured = [row for row in values(spec) if row["kind"] == "measured"]
    top = MAX_ABOVE * max(1.0, *(row["value"] for row in measured))
    assert max(row["high"] for row in measured if row["high"]) == pytest.approx(top)
    assert "longer whiskers are cut off" in spec["title"]["subtitle"][1]


def test_the_axis_of_step_times_reaches_to_the_medians_of_single_runs(tmp_path: Path) -> None:
    records = [make_record(make_cell(nodes=nodes), 1, step_s=step_s) for nodes, step_s in ((1, 1.0), (2, 0.01))]
    records += [make_record(make_cell(nodes=2), 2, step_s=0.1)]
    spec = PLOTS["step_time"](collected(tmp_path / "digits", records))
    low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    medians = [row["run"] for row in values(spec) if "run" in row]
    assert low < min(medians) < max(medians) < high


def test_steps_of_seconds_are_in_seconds_and_short_ones_in_milliseconds(tmp_path: Path) -> None:
    for step_s, unit in ((1.6, "step, s"), (0.16, "step, ms"), (1.6e-4, "step, \N{MICRO SIGN}s")):
        spec = PLOTS["step_time"](collected(tmp_path / unit, [make_record(make_cell(), step_s=step_s)]))
        assert spec["layer"][0]["encoding"]["x"]["title"] == unit
        (row,) = [row for row in values(spec) if "p50" in row]
        assert row["p50"] == pytest.approx(1.6 if unit == "step, s" else 160)
        assert f"median {1.6 if unit == 'step, s' else 160}" in row["says"]


def test_the_page_of_500_runs_has_at_most_two_megabytes(tmp_path: Path) -> None:
    models, batches = ["lenet", "alexnet", "resnet18", "resnet50"], [8, 16, 32, 64, 128, 256]
    records = plausible_records(scaling_cells(model=models, batch_size=batches, nodes=[1, 2, 4, 8, 16, 32, 64]))
    for record in records:
        record["training"]["losses"] = [[step, 1.23 + (step * 7 % 11) / 10] for step in range(0, 1000, 2)]
    directory = tmp_path / "digits"
    write_records(write_study(directory, [record["cell"] for record in records[::3]]), records)
    write_all([directory], directory)
    assert len(records) == 504
    assert (directory / "report.html").stat().st_size < 2_000_000


def test_losses_are_smoothed_and_the_recorded_ones_are_kept(tmp_path: Path) -> None:
    record = make_record(make_cell())
    record["training"]["losses"] = [[step, 1.0 + (-1) ** step] for step in range(200)]
    rows = values(PLOTS["loss"](collected(tmp_path / "digits", [record])))
    assert {row["loss"] for row in rows} == {0.0, 2.0}
    assert all(0.5 < row["smooth"] < 1.5 for row in rows)
    assert rows[100]["smooth"] == pytest.approx(10 / 9), "of 9 points, of which 5 are 2"
    assert rows[1]["seen"] - rows[0]["seen"] == 32, "over samples seen"
    assert 2 <= sum("says" in row for row in rows) <= 20, "few points can be pointed at, since each is an element of the page"


def over_time(tmp_path: Path, count: int, start: str, **changes: object) -> dict[str, Any]:
    """The timeline of runs that begin each two minutes after the one before on one of seven nodes; the last one begins at `start`."""
    cell = make_cell()
    times = [f"2026-05-01T{10 + number * 2 // 60:02d}:{number * 2 % 60:02d}:00Z" for number in range(count - 1)]
    records = [make_record(cell, repeat, time={"start": at, "end": at}, **changes) for repeat, at in enumerate([*times, start], 1)]
    for repeat, record in enumerate(records):
        record["nodes"][0]["hostname"] = f"node{repeat % 7}"
    return PLOTS["timeline"](collected(tmp_path / "digits", records, [cell], repeats=count))


def test_the_steps_of_runs_are_drawn_over_time_with_their_waits_and_without_pauses(tmp_path: Path) -> None:
    spec = over_time(tmp_path, 3, "2026-05-03T10:00:00Z", **{"steps_s.assign": 40.0})
    bars = [row for row in values(spec) if "step" in row]
    assert {row["row"][-2:]: row["from"] for row in bars if row["step"] == "assign"} == {
        "r1": pytest.approx(0.0), "r2": pytest.approx(120.0), "r3": pytest.approx(191.448, rel=0.01),
    }  # fmt: skip
    assert [row["to"] - row["from"] for row in bars if row["step"] == "assign"] == [pytest.approx(40.0)] * 3
    assert spec["title"]["subtitle"] == ["3 runs waited for nodes, 2m00s in all", "dashed: a time in which nothing ran is cut out"]
    assert bars[0]["says"].endswith("-r1 on node0, 2026-05-01T10:00:00: assign 40.0 s")
    assert [row["at"] for row in values(spec) if "at" in row] == [pytest.approx(191.448, rel=0.01)]


@pytest.mark.parametrize("start", ["yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:50:00-14:00"])
def test_many_runs_are_drawn_by_node_whatever_a_record_says_of_its_start(tmp_path: Path, start: str) -> None:
    spec = over_time(tmp_path, 61 + (start == "yesterday"), start)
    bars = [row for row in values(spec) if "step" in row]
    assert {row["row"] for row in bars} == {f"node{number}" for number in range(7)}
    assert len({row["says"].partition(" ")[0] for row in bars}) == 61
    assert "NaN" not in to_svg(spec, "timeline")


def test_a_wait_of_ages_and_steps_without_any_time_are_drawn_too(tmp_path: Path) -> None:
    none = dict.fromkeys((f"steps_s.{step}" for step in ("assign", "stage", "train", "result", "push", "release")), 0.0)
    assert "no run has begun" in to_svg(over_time(tmp_path / "none", 2, "2026-05-01T12:00:00Z", **none), "timeline")
    assert "NaN" not in to_svg(over_time(tmp_path / "ages", 2, "2026-05-01T12:00:00Z", **{"steps_s.assign": 1e15}), "timeline")


def test_a_pause_is_no_longer_than_a_small_part_of_what_happened() -> None:
    place, cuts = clock([(0.0, 10.0), (30.0, 40.0), (86_395.0, 86_410.0)])
    assert cuts == [pytest.approx(40.7)]
    assert [place(moment) for moment in (0.0, 40.0, 86_395.0, 86_410.0)] == pytest.approx([0.0, 40.0, 40.7, 55.7])
