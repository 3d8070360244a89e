"""The runs of a study over the clock: what each waited for, and a picture without the time in which nothing happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.workflow.report.builder import collected, failed, make_cell, make_record
from workflow.report.timeline import Placed, causes, clock_of, lanes_of, picture_of, placed_runs, sentences_of


def run(name: str, begin: float, waited_s: float, hosts: tuple[str, ...] = ("a",), seconds: float = 10.0) -> Placed:
    return Placed(run_id=name, label=name, source="s", hosts=hosts, begin=begin, waited_s=waited_s, steps=(("train", seconds),))


def test_a_run_waited_for_the_last_that_left_a_node_of_it_meanwhile() -> None:
    runs = [
        run("first", 0.0, 0.0),
        run("beside", 0.0, 0.0, ("b",), seconds=4.0),
        run("both", 11.0, 9.0, ("a", "b")),
        run("late", 60.0, 5.0),
        run("at once", 70.5, 0.2),
    ]
    assert causes(runs) == [None, None, 0, None, None], "late began long after the run before it, at once did not wait"


def test_runs_that_share_a_node_have_rows_of_their_own() -> None:
    runs = [run("one", 0.0, 0.0), run("two", 5.0, 0.0), run("three", 10.0, 0.0), run("beside", 12.0, 0.0, ("b", "a"))]
    assert lanes_of(runs) == [("a", 0), ("a", 1), ("a", 0), ("b", 0)]


def test_time_in_which_nothing_happened_is_cut_out() -> None:
    clock = clock_of([run("a", 0.0, 0.0), run("b", 30.0, 0.0), run("next day", 86_400.0, 5.0)])
    assert [(begin, end) for begin, end, _ in clock.spans] == [(0.0, 40.0), (86_395.0, 86_410.0)]
    assert clock.x(40.0) < clock.x(86_395.0) < clock.x(40.0) + 40
    assert clock.x(86_410.0) <= 1160.001


def test_the_picture_has_a_bar_for_each_step_and_names_the_longest_wait(tmp_path: Path) -> None:
    cell = make_cell()
    times = [{"time": {"start": f"2026-05-01T10:0{minute}:00Z", "end": f"2026-05-01T10:0{minute}:40Z"}} for minute in (0, 1, 2)]
    records = [
        make_record(cell, repeat, **{**times[repeat - 1], "steps_s.assign": wait, "run_s": 27.4})
        for repeat, wait in ((1, 0.5), (2, 40.0), (3, 20.0))
    ]
    analysis = collected(tmp_path / "digits", records, [cell], repeats=3)
    runs = placed_runs(analysis)
    picture, sentences = picture_of(runs), list(sentences_of(runs))
    assert picture.count("<g><title>") == 3
    assert len(re.findall(r'<path fill="#0f6cbd"', picture)) == 3, "train"
    assert sentences[1] == "2 runs waited for nodes, in all 1m00s; 1 of them for a run of this study."
    assert sentences[2] == f"{cell['cell_id']}-r2 waited 40 s for {cell['cell_id']}-r1."


def test_a_name_and_a_moment_that_are_none_are_text_and_left_out(tmp_path: Path) -> None:
    cell = make_cell(model="<b>")
    records = [make_record(cell, 1), failed(cell, 2, time={"start": "yesterday", "end": "now"})]
    analysis = collected(tmp_path / "digits", records, [cell], repeats=2)
    runs = placed_runs(analysis)
    assert [one.run_id for one in runs] == [f"{cell['cell_id']}-r1"]
    assert "<b>" not in picture_of(runs)


@pytest.mark.parametrize(("count", "alone"), [(300, True), (700, False)])
def test_very_many_runs_are_drawn_by_node_and_stay_small(count: int, alone: bool) -> None:
    picture = picture_of([run(f"r{number}", 20.0 * number, 5.0, (f"node{number % 7}",)) for number in range(count)])
    assert picture.count('class="label"') == 7
    assert ("<title>" in picture) == alone
    assert len(picture) < 150_000


@pytest.mark.parametrize(
    "changes",
    [
        {"steps_s.assign": 1e15},
        {"steps_s.assign": 1e11},
        {"steps_s.train": 1e14, "run_s": 1e14, "time": {"start": "2026-05-02T10:00:00Z", "end": "2026-05-02T10:05:00Z"}},
        {"time": {"start": "0001-01-01T00:00:00+14:00", "end": "0001-01-01T00:10:00+14:00"}},
        {"time": {"start": "9999-12-31T23:50:00-14:00", "end": "9999-12-31T23:59:00-14:00"}},
    ],
)
def test_moments_that_no_calendar_has_are_left_out(tmp_path: Path, changes: dict[str, object]) -> None:
    cell = make_cell()
    analysis = collected(tmp_path / "digits", [make_record(cell, 1), make_record(cell, 2, **changes)], [cell], repeats=2)
    assert analysis.frame["status"].to_list() == ["ok", "ok"], "the record is believed but for its place on the clock"
    assert [run.run_id for run in placed_runs(analysis)] == [f"{cell['cell_id']}-r1"]


def test_a_wait_of_centuries_has_few_marks_and_no_time_at_all_has_a_scale() -> None:
    assert picture_of([run("late", 7e10, 6e10)]).count("<line") <= 12
    assert "nan" not in picture_of([run("none", 0.0, 0.0, seconds=5e-324)])
