"""The data that the page puts side by side: complete, limited, and text whatever it says. test_browser.py looks at what is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.workflow.report.builder import collected, make_cell, make_record, plausible_records, scaling_cells
from workflow.report import side_by_side
from workflow.report.analysis import Analysis
from workflow.report.curves import MAX_POINTS, curves_of
from workflow.report.side_by_side import data_of, markup


def write_events(analysis: Analysis, run_id: str, lines: Sequence[Mapping[str, Any]], attempt: int = 1) -> Path:
    """Write the events of rank 0 of a run, each a step, unless it says what it is."""
    path = analysis.sources[0].directory / "runs" / run_id / "attempts" / str(attempt) / "events-0.jsonl"
    path.write_text("".join(json.dumps({"event": "step", **line}) + "\n" for line in lines))
    return path


def step(number: int, seconds: float, **keys: Any) -> dict[str, Any]:
    return {"step": number, "seconds": seconds, "monotonic_ns": 1_000_000_000 * number, **keys}


def test_a_run_has_its_configuration_its_results_and_where_it_comes_from(tmp_path: Path) -> None:
    first, second = make_cell(batch_size=32), make_cell(batch_size=64)
    records = [make_record(first, step_s=0.1), make_record(second, step_s=0.15, **{"provenance.git_sha": "0000000"})]
    data = data_of(collected(tmp_path / "digits", records, repeats=1))
    texts = data["texts"]
    one, other = (
        {name: texts[number] for name, number in zip(data["configuration"], cell["values"], strict=True)} for cell in data["cells"]
    )
    assert {name for name in one if one[name] != other[name]} == {"batch_size", "global_batch_size"}
    runs = [dict(zip(data["numbers"], run["numbers"], strict=True)) for run in data["runs"]]
    assert [run["step, median [ms]"] for run in runs] == [100, 150]
    assert [run["rate [per second]"] for run in runs] == [320, 426.7]
    numbers = [[*run["own"], *data["common"][run["common"]]] for run in data["runs"]]
    origins = [{name: texts[number] for name, number in zip(data["origin"], own, strict=True)} for own in numbers]
    assert {name for name in origins[0] if origins[0][name] != origins[1][name]} == {"git sha"}
    assert [data["cells"][run["cell"]]["name"] for run in data["runs"]] == ["lenet · batch 32 · 1×1", "lenet · batch 64 · 1×1"]


def test_a_run_that_was_not_measured_has_no_rate_and_no_steps(tmp_path: Path) -> None:
    record = {**make_record(make_cell()), "status": "nan", "status_reason": "a loss that is not a number"}
    data = data_of(collected(tmp_path / "digits", [record], repeats=1))
    numbers = dict(zip(data["numbers"], data["runs"][0]["numbers"], strict=True))
    assert [numbers[name] for name in ("rate [per second]", "step, median [ms]", "step, p95 [ms]")] == [None] * 3
    assert numbers["run [s]"] == 27.4


def test_a_cell_has_its_estimates_with_their_intervals(tmp_path: Path) -> None:
    records = [make_record(make_cell(), repeat, step_s=0.1 + repeat / 500) for repeat in (1, 2, 3)]
    (cell,) = data_of(collected(tmp_path / "digits", records))["cells"]
    text, value, low, high = cell["step"]
    assert (text, value) == ("104.0 ±5.1", 104)
    assert low < value < high
    assert cell["measured"] == [3, 3]


def test_steps_are_read_with_warm_up_evaluation_and_checkpoint(tmp_path: Path) -> None:
    record = make_record(make_cell())
    analysis = collected(tmp_path / "digits", [record], repeats=1)
    write_events(
        analysis,
        record["run_id"],
        [
            *(step(number, 0.5, measured=False) for number in (0, 1)),
            *(step(number, 0.02, measured=True) for number in (2, 3)),
            {"event": "phase", "phase": "eval", "monotonic_ns": 4_000_000_000},
            {"event": "phase", "phase": "train", "monotonic_ns": 6_500_000_000},
            {"event": "checkpoint", "step": 4},
            step(4, 0.03, measured=True),
            {"event": "step", "step": 5, "seconds": "long"},
        ],
    )
    ((_, found),) = curves_of(analysis)
    losses = found.pop("losses")
    assert found == {
        "steps": 5, "warmup": 2, "ms": [500, 500, 20, 20, 30], "evaluations": [[4, 2.5]], "checkpoints": [4],
    }  # fmt: skip
    assert (losses[0], len(losses)) == ([0, 2.3], MAX_POINTS)


def test_a_long_run_is_thinned_and_its_longest_steps_stay(tmp_path: Path) -> None:
    record = make_record(make_cell(), **{"training.losses": None})
    analysis = collected(tmp_path / "digits", [record], repeats=1)
    write_events(analysis, record["run_id"], [step(number, 9.0 if number == 777 else 0.01, measured=True) for number in range(2400)])
    ((_, found),) = curves_of(analysis)
    assert (found["steps"], len(found["ms"]), set(found["ms"])) == (2400, MAX_POINTS, {10.0})
    assert max(found["most_ms"]) == 9000


def test_events_that_are_a_link_are_not_read(tmp_path: Path) -> None:
    record = make_record(make_cell(), **{"training.losses": None})
    analysis = collected(tmp_path / "digits", [record], repeats=1)
    path = write_events(analysis, record["run_id"], [step(0, 0.1)])
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert list(curves_of(analysis)) == []


def test_no_text_ends_its_element(tmp_path: Path) -> None:
    cell = make_cell(model="</template><script>alert(1)</script>&amp;")
    text = markup(collected(tmp_path / "digits", [make_record(cell)], repeats=1))
    inner = text.partition('<template id="compare-data">')[2].removesuffix("</template>")
    assert "<" not in inner
    assert "&" not in inner
    assert cell["model"] in json.loads(inner)["texts"]


def test_curves_stop_where_their_room_is_full(tmp_path: Path) -> None:
    cells = scaling_cells(batch_size=[32, 64], nodes=[1, 2])
    analysis = collected(tmp_path / "digits", plausible_records(cells), cells)
    size = len(json.dumps(next(curves_of(analysis))[1], separators=(",", ":")))
    data = data_of(analysis)
    assert all("curves" in run for run in data["runs"])
    runs: list[dict[str, Any]] = [{} for _ in data["runs"]]
    keys = list(analysis.frame.select("source", "run_id").iter_rows())
    side_by_side.add_curves(analysis, runs, {key: place for place, key in enumerate(keys)}, room=int(4.5 * size))
    assert ["curves" in run for run in runs] == [repeat == 1 for repeat in analysis.frame["repeat"]], "of each cell the first run"
