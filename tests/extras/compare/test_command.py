"""`slipway compare`: cells are matched, words choose them, exit codes answer, and what differs is listed."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import make_record, scaling_cells, write_records, write_study
from workflow.commands.main import run


def study(
    place: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    slow: float = 1.0,
    repeats: int = 5,
    cells: Sequence[dict[str, Any]] | None = None,
) -> str:
    """Results whose steps last `slow` times 0.1 s, with a spread of 0.5 %."""
    dice = random.Random(place.name)
    cells = scaling_cells(nodes=[1, 2]) if cells is None else cells
    name = {"study": place.name, **(changes or {})}
    records = [
        make_record(cell, repeat, step_s=0.1 * slow * dice.lognormvariate(0, 0.005), job_id=str(repeat), **name)
        for cell in cells
        for repeat in range(1, repeats + 1)
    ]
    write_records(write_study(place, cells, repeats=repeats, study=place.name), records)
    return str(place)


def compare(*words: str, code: int = 0) -> None:
    assert run(["compare", *words]) == code


def found(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    compare(*words, "--json", code=code)
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_a_slower_study_is_found_and_what_differs_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = study(tmp_path / "before")
    two = study(tmp_path / "after", {"provenance.git_sha": "abc", "provenance.tf32": True}, slow=1.03)
    result = found(capsys, one, two)
    assert [row["verdict"] for row in result["cells"]] == ["slower", "slower"]
    assert all(row["difference_low"] < row["difference"] < row["difference_high"] < 0 for row in result["cells"])
    assert [row["difference"] for row in result["cells"]] == [pytest.approx(-0.029, abs=0.008)] * 2
    assert {row["field"]: (row["a"], row["b"], row["in_all"]) for row in result["differs"]} == {
        "provenance.git_sha": (["ced9e06"], ["abc"], True),
        "provenance.tf32": ([], ["true"], True),
        "study": (["before"], ["after"], True),
    }
    compare(two, one)
    shown = capsys.readouterr().out
    assert "faster" in shown
    assert "provenance.git_sha" in shown


@pytest.mark.parametrize(("slow", "repeats", "code"), [(1.0, 5, 0), (1.05, 5, 29), (1.02, 5, 30), (1.0, 2, 30)])
def test_the_exit_code_answers_to_a_margin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slow: float, repeats: int, code: int
) -> None:
    one, two = study(tmp_path / "before", repeats=repeats), study(tmp_path / "after", slow=slow, repeats=repeats)
    compare(one, two, "--not-slower-than", "2%", code=code)
    printed = capsys.readouterr()
    answer = {0: "held", 29: "not held", 30: "cannot be told"}[code]
    text = printed.err if code else printed.out
    assert f"not slower than 2 % in each of 2 cells: {answer}" in text
    assert ("if B were as fast, these runs would show it in" in text) == (repeats > 2)


def test_a_cell_that_b_has_lost_is_not_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = study(tmp_path / "before"), study(tmp_path / "after", cells=scaling_cells(nodes=[1]))
    result = found(capsys, one, two, "--not-slower-than", "2%", code=30)
    assert len(result["only_in_a"]) == 1
    assert result["not_slower_than"]["answer"] == "cannot be told"
    assert found(capsys, two, one, "--not-slower-than", "2%")["not_slower_than"]["answer"] == "held"


def test_words_choose_cells_of_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = study(tmp_path / "both", cells=scaling_cells(framework=["pytorch", "jax"], nodes=[1, 2]), repeats=6)
    result = found(capsys, f"{place}:framework=pytorch", f"{place}:framework=jax")
    assert [row["nodes"] for row in result["cells"]] == [1, 2]
    fields = [row["field"] for row in result["differs"]]
    assert fields[:2] == ["cell.framework", "provenance.framework"]
    assert len(found(capsys, f"{place}:framework=jax,nodes=1", f"{place}:framework=jax,nodes=2")["cells"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{0}:framwork=jax", "{0}"), "no key 'framwork'"),
        (("{0}:framework=jx", "{0}"), "no cell has framework=jx; they have pytorch"),
        (("{0}:nodes", "{0}"), "expected KEY=VALUE"),
        (("{0}/nothing", "{0}"), "no such file or directory"),
        (("{0}", "{0}"), "of the same runs, by their seals"),
        (("{0}:nodes=1", "{0}:model=lenet"), "several of its cells have the same other keys, and differ in"),
        (("{0}", "{1}"), "the closest two differ in batch_size"),
        (("{0}", "{1}", "--not-slower-than", "2"), "expected a percentage"),
        (("{0}", "{1}", "--not-slower-than", "0%"), "expected a percentage"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], message: str) -> None:
    places = study(tmp_path / "one"), study(tmp_path / "two", cells=scaling_cells(batch_size=[64]))
    compare(*[word.format(*places) for word in words], code=10)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("levels", [100, 960, 5000])
def test_a_record_that_is_nested_deeply_is_compared_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], levels: int) -> None:
    """What a program tells of itself may be anything; a record of another hand, too."""
    one, two = Path(study(tmp_path / "before", cells=scaling_cells(nodes=[1]))), study(tmp_path / "after", cells=scaling_cells(nodes=[1]))
    for path in one.glob("runs/*/**/record.json"):
        value = json.loads(path.read_text())
        del value["seal"]
        deep = json.dumps({**value, "provenance": {**value["provenance"], "own": "HERE"}})
        path.write_text(deep.replace('"HERE"', '{"a": ' * levels + "1" + "}" * levels))
    code = run(["compare", str(one), two])
    printed = capsys.readouterr()
    assert code in (0, 19)
    assert "Traceback" not in printed.err
    assert "not known" in printed.out or "nested too deeply" in printed.err or "provenance.own.a" in printed.out


def test_failed_cells_and_other_units_are_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = study(tmp_path / "before"), study(tmp_path / "after", {"status": "oom", "status_reason": "no memory", "performance": None})
    result = found(capsys, one, two)
    assert [row["verdict"] for row in result["cells"]] == ["not known"] * 2
    assert [row["note"] for row in result["cells"]] == ["B: oom"] * 2
    assert result["differs"] == []
    for first, second, code in ((one, two, 30), (two, one, 30), (two, study(tmp_path / "again"), 30)):
        compare(first, second, "--not-slower-than", "2%", code=code)


def test_a_cell_that_a_never_measured_is_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = scaling_cells(nodes=[1, 2])
    for name in ("before", "after"):
        study(tmp_path / name, cells=cells)
    for path in (tmp_path / "before" / "runs").glob(f"{cells[1]['cell_id']}-*"):
        shutil.rmtree(path)
    result = found(capsys, str(tmp_path / "before"), str(tmp_path / "after"), "--not-slower-than", "2%")
    assert (result["not_slower_than"]["answer"], result["cells"][1]["note"]) == ("held", "A: missing")
