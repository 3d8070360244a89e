"""slipway_steps.py: what lines of programs tell of their steps. The lines are in tests/captured/step-lines."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from base.process import CODE_ROOT
from containers.step_lines import GROUPS, StepLines, expression_fault
from tests.containers.specs import library

CASES = sorted((CODE_ROOT / "tests" / "captured" / "step-lines").glob("*.json"))
WINDOW = {"warmup": 10, "measured": 20, "total": 1000}


MODULE: Any = library("slipway_steps")


def steps_of(expression: str, **settings: Any) -> Any:
    return MODULE.Steps({"step": expression, **settings}, WINDOW, 0.0)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_captured_lines_tell_of_steps(path: Path) -> None:
    case = json.loads(path.read_text())
    assert StepLines(**case["settings"]).step == case["settings"]["step"]
    steps = MODULE.Steps(case["settings"], WINDOW, 0.0)
    found = [steps.take([line], float(now)) for now, line in enumerate(case["lines"], start=1)]
    told = [event for event in found if event is not None]
    assert len(told) == len(case["expected"])
    for event, expected in zip(told, case["expected"], strict=True):
        assert {key: event.get(key) for key in expected} == pytest.approx(expected)
    assert steps.warnings() == []


IN_THE_GUIDE = {
    "nanoGPT": "nanogpt",
    "Hugging Face Trainer, `logging_steps=10`": "transformers",
    "torchvision's references": "torchvision",
    "`caffe train`": "caffe",
    "BigDL": "bigdl",
    "neon's progress bar": "neon-progress-bar",
    "tqdm": "tqdm",
}


def test_the_readme_says_of_each_file_where_its_lines_come_from() -> None:
    told = re.findall(r"^\| `([\w.-]+)` \| (captured|form) \|", (CASES[0].parent / "README.md").read_text(), re.MULTILINE)
    found = [(path.stem, json.loads(path.read_text())["source"]) for path in CASES]
    assert sorted(told) == sorted((name, "captured" if "captured" in source else "form") for name, source in found)


def test_the_expressions_of_the_guide_tell_what_the_captured_lines_say() -> None:
    """As they stand in the file, and as a page shows them, where a table takes the backslash from a bar."""
    text = (CODE_ROOT / "docs" / "reference" / "programs.md").read_text()
    rows = re.findall(r"^\| (.+) \| `([^`]*\(\?P<[^`]*)`(?:, and `every: (\d+)`)? \|$", text, re.MULTILINE)
    assert [program for program, *_ in rows] == list(IN_THE_GUIDE)
    for program, expression, every in rows:
        case = json.loads((CASES[0].parent / f"{IN_THE_GUIDE[program]}.json").read_text())
        settings = {"every": int(every)} if every else {}
        for shown in (expression, expression.replace("\\|", "|")):
            steps = steps_of(shown, **settings)
            told = [event for now, line in enumerate(case["lines"], start=1) if (event := steps.take([line], float(now)))]
            groups = {"step", "steps", *re.compile(shown).groupindex}
            last = {key: value for key, value in case["expected"][-1].items() if key in groups}
            assert {key: told[-1][key] for key in last} == last, program
            assert len(told) >= len(case["expected"])


@pytest.mark.parametrize("path", [path for path in CASES if '"loss":' in path.read_text()], ids=lambda path: path.stem)
@pytest.mark.parametrize("text", ["nan", "-nan", "NaN"])
def test_a_loss_that_is_no_number_is_found_in_such_lines(path: Path, text: str) -> None:
    """As printf prints it, and as Java and MATLAB do: a run must not go on with it as if the program had told no loss."""
    case = json.loads(path.read_text())
    match = next(match for line in case["lines"] if (match := re.search(case["settings"]["step"], line)))
    begin, end = match.span("loss")
    line = match.string
    event = MODULE.Steps(case["settings"], WINDOW, 0.0).take([line[:begin] + text + line[end:]], 1.0)
    assert math.isnan(event["loss"])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234", 1234.0),
        ("'12,345,678.5e1'", 123456785.0),
        ("0,5", None),
        ("12,34", None),
        ("1,2345", None),
        ("0,123", None),
        ("1.2e-3", 0.0012),
        ("'2.5'", 2.5),
        (" 7 ", 7.0),
        ("-nan", math.nan),
        ("inf", math.inf),
        ("1.#QNAN", None),
        ("", None),
    ],
)
def test_numbers_as_programs_print_them(text: str, number: float | None) -> None:
    assert MODULE.plain_number(text) == (number if number is None else pytest.approx(number, nan_ok=True))


def test_a_line_of_several_steps_is_measured_where_all_of_them_are() -> None:
    steps = steps_of(r"it (?P<step>\d+)")
    events = [steps.take([f"it {step}"], step / 10) for step in range(4, 41, 4)]
    assert [(event["step"], event["steps"]) for event in events if event["measured"]] == [(15, 4), (19, 4), (23, 4), (27, 4)]
    assert {round(event["seconds"], 6) for event in events} == {0.1}


def test_lines_that_came_together_are_one_mean() -> None:
    steps = steps_of(r"it (?P<step>\d+) (?P<seconds>\S+) (?P<samples>\d+)")
    steps.take(["it 1 0.5 32"], 1.0)
    event = steps.take(["it 2 0.1 32", "noise", "it 3 0.3 16"], 9.0)
    assert (event["step"], event["steps"], event["samples"]) == (2, 2, 24)
    assert event["seconds"] == pytest.approx(0.2)
    for number in range(4, 40, 2):
        steps.take([f"it {number} 0.1 32", f"it {number + 1} 0.1 32"], float(number))
    assert "came together with one before" in steps.warnings()[0]


def test_seconds_of_one_step_are_not_those_of_all_that_a_line_tells_of() -> None:
    steps = steps_of(r"it (?P<step>\d+) (?P<seconds>\S+)")
    steps.take(["it 10 0.001"], 1.0)
    assert steps.take(["it 20 0.001"], 3.0)["seconds"] == pytest.approx(0.2)
    counted = steps_of(r"it (?P<step>\d+) (?P<seconds>\S+)s/(?P<steps>\d+)")
    counted.take(["it 10 1.0s/10"], 1.0)
    assert counted.take(["it 20 5s/10"], 3.0)["seconds"] == pytest.approx(0.5)


def test_steps_told_again_or_backwards_are_counted_and_left_out() -> None:
    steps = steps_of(r"it (?P<step>\S+)")
    told = [steps.take([f"it {step}"], 1.0) for step in ("5", "5", "3", "6", "many", "-1", "1e300", "99999999")]
    assert [event and event["step"] for event in told] == [4, None, None, 5, None, None, None, None]
    assert [sentence.split()[0] for sentence in steps.warnings()] == ["2", "4"]


def test_epochs_may_differ_in_their_steps() -> None:
    """And a line that counts for nothing, here of an epoch that cannot be, moves none of those after it."""
    steps = steps_of(r"epoch (?P<epoch>\S+) step (?P<step>\d+)/(?P<epoch_steps>\d+)")
    lines = ["1 step 3/3", "2 step 1/2", "1e300 step 1/2", "2 step 2/2", "1 step 3/3", "4 step 1/2", "4 step 2/2"]
    told = [steps.take([f"epoch {line}"], 1.0) for line in lines]
    assert [event and event["step"] for event in told] == [2, 3, None, 4, None, 7, 8]


def test_a_loss_that_is_none_is_told_whatever_follows_it() -> None:
    steps = steps_of(r"it (?P<step>\d+) (?P<loss>\S+)")
    assert math.isnan(steps.take(["it 1 2.0", "it 2 nan", "it 3 1.0"], 1.0)["loss"])


def test_a_long_line_is_looked_at_in_its_beginning_only() -> None:
    steps = steps_of(r"it (?P<step>\d+)")
    assert steps.take(["x" * 5000 + "it 1"], 1.0) is None
    assert steps.take(["x" * 4000 + "it 1"], 1.0) is not None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (r"it (?P<stepp>\d+)", "a group is named 'stepp'; valid: epoch"),
        (r"it (\d+)", "no group that tells of a step"),
        (r"it (?P<samples>\d+)", "no group that tells of a step"),
        (r"it (?P<step>\d+", "which is no regular expression of Python's"),
        (r"(?P<epoch>\d) (?P<step>\d)", "the groups step, epoch and epoch_steps together"),
        ("(?P<step>a)" * 500, "of 1 to 1000 characters"),
        ("(?P<step>\n)", "can be printed"),
        ("", "of 1 to 1000 characters"),
    ],
)
def test_an_expression_is_checked_when_it_is_read(expression: str, words: str) -> None:
    assert words in str(expression_fault(expression))


def test_every_group_is_read() -> None:
    text = (CODE_ROOT / "containers" / "lib" / "slipway_steps.py").read_text()
    assert [name for name in GROUPS if f'"{name}"' not in text] == []


def test_samples_that_no_number_can_add_up_to_are_warned_of() -> None:
    steps = steps_of(r"it (?P<step>\d+) of (?P<samples>\S+)")
    assert "samples" not in steps.take(["it 1 of 1e308", "it 2 of 1e308"], 1.0)
    assert steps.warnings()[-1].startswith("1 readings of lines tell of samples")


@pytest.mark.parametrize(("told", "warned"), [("-5", True), ("1e999", True), ("8", False), ("x", False)])
def test_samples_of_a_line_that_are_no_count_are_warned_of(told: str, warned: bool) -> None:
    """What is no number at all is as if it were not told."""
    steps = steps_of(r"it (?P<step>\d+) of (?P<samples>\S+)")
    event = steps.take([f"it 1 of {told}"], 1.0)
    assert event is not None
    assert event.get("samples") == (8 if told == "8" else None)
    assert [sentence.partition(" of lines")[0] for sentence in steps.warnings()] == (["1 readings"] if warned else [])
