"""`slipway lint-table`: what is wrong in published tables, what is not in ours, and what the command prints."""

import json
import shutil
from pathlib import Path

import pytest

from extras.lint_table.columns import understand
from extras.lint_table.reading import read_tables
from extras.lint_table.relations import meanings
from extras.lint_table.rules import Rule, check_table
from tests.workflow.report.builder import collected, plausible_records, scaling_cells
from workflow.commands.main import run
from workflow.report.outputs import write_tables

PUBLISHED = Path(__file__).parents[2] / "captured" / "published-tables"


def found_in(path: Path) -> list[tuple[int, Rule, str]]:
    tables = [understand(table) for table in read_tables(path)]
    return [(one.line, one.rule, one.right) for table in tables for one in check_table(table, meanings(table))]


KNOWN = {
    "pytorch-bert.txt": [
        *[(line, Rule.INTEGERS, str(126 * steps)) for line, steps in zip(range(22, 25), (64, 32, 16), strict=True)],
        (24, Rule.INTEGERS, "4608"),
        *[(line, Rule.INTEGERS, str(126 * steps)) for line, steps in zip(range(25, 28), (8, 4, 2), strict=True)],
    ],
    "pytorch-bert-2019.txt": [(13, Rule.SPEEDUP, "3.56"), (15, Rule.RATIO, "2.88")],
    "pytorch-resnet50.txt": [(12, Rule.MISSING_BATCH, "")],
    "tensorflow-bert.txt": [
        (7, Rule.LABEL, "strong"),
        *[(line, Rule.SUPERLINEAR, "") for line in (10, 10, 14)],
        *[(line, Rule.LABEL, "strong") for line in (26, 41)],
        (47, Rule.BASE_ROW, "65536"),
        *[(line, Rule.INTEGERS, "32768") for line in (48, 49, 50)],
    ],
    "tensorflow2-bert.txt": [
        (7, Rule.LABEL, "strong"),
        (13, Rule.INTEGERS, "16384"),
        (14, Rule.INTEGERS, "61440"),
        (14, Rule.INTEGERS, "16384"),
        (15, Rule.INTEGERS, "61440"),
        (16, Rule.RISING, ""),
    ],
    "tensorflow2-maskrcnn.txt": [
        (12, Rule.RATIO, "1.20"),
        (12, Rule.SPEEDUP, "5.89"),
        (13, Rule.BASE_ROW, "5.94"),
        (13, Rule.BASE_ROW, "3.01"),
    ],
    "pytorch-nnunet.txt": [
        *[(line, Rule.SPEEDUP, right) for line, right in ((15, "7.63"), (16, "7.83"), (17, "7.91"))],
        *[(line, Rule.SPEEDUP, right) for line, right in ((21, "7.60"), (22, "8.04"), (23, "7.83"))],
    ],
    "dlperf-mxnet-bert.txt": [],
    "dlperf-tensorflow-bert.txt": [],
    "pytorch-transformer-xl.txt": [],
}
"""Of each captured file what is wrong in it, looked at by hand."""


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_wrong_in_published_tables(name: str) -> None:
    assert found_in(PUBLISHED / name) == KNOWN[name]


def test_every_captured_table_is_looked_at() -> None:
    assert {path.name for path in PUBLISHED.iterdir()} == {*KNOWN}


def test_the_figures_of_the_decks(tmp_path: Path) -> None:
    """1077 -> 696 min at 4 -> 8 nodes is 1.547x, 77.4 %."""
    path = tmp_path / "deck.md"
    path.write_text(
        "## ResNet-152, batch 32\n| nodes | time (min) | speed-up | efficiency |\n|-|-|-|-|\n| 4 | 1077 | 1 | 100 % |\n"
        "| 8 | 696 | 1.547 | 77.4 % |\n"
    )
    assert found_in(path) == []
    path.write_text(path.read_text().replace("77.4", "87.4").replace("1.547", "1.457"))
    assert found_in(path) == [(5, Rule.EFFICIENCY, "77.4"), (5, Rule.SPEEDUP, "1.547")]


def test_our_own_tables_hold_and_a_changed_one_does_not(tmp_path: Path) -> None:
    cells = scaling_cells(model=["lenet", "resnet18"], batch_size=[32, 64], nodes=[1, 2, 4])
    cells += scaling_cells(model=["alexnet"], global_batch_size=[256], nodes=[1, 2, 4])
    write_tables(collected(tmp_path / "results" / "s", plausible_records(cells)[:40], cells), tmp_path)
    for path in sorted((tmp_path / "tables").iterdir()):
        assert path.suffix not in (".csv", ".md") or found_in(path) == [], path
    path = tmp_path / "tables" / "scaling.csv"
    lines = path.read_text().splitlines()
    for word, other in (("weak", "strong"), ("strong", "weak")):
        at = next(number for number, line in enumerate(lines) if f",{word}," in line)
        path.write_text("\n".join([*lines[:at], lines[at].replace(f",{word},", f",{other},"), *lines[at + 1 :]]))
        assert found_in(path) == [(at + 1, Rule.LABEL, word)]


def test_the_command_prints_file_line_and_the_right_value_and_exits_with_19(capsys: pytest.CaptureFixture[str]) -> None:
    path = PUBLISHED / "pytorch-bert-2019.txt"
    assert run(["lint-table", str(path)]) == 19
    printed, errors = capsys.readouterr()
    assert printed.splitlines() == [
        f"{path}:13: speed-up: 'Multi-gpu weak scaling with FP16' prints 3.80, and 92.68 / 26.04 is 3.56",
        f"{path}:15: ratio: 'Speed-up with mixed precision' prints 2.87, and 365.12 / 126.56 is 2.88",
    ]
    assert "2 findings in 1 table of 1; 8 speed-ups, efficiencies and ratios hold" in errors
    assert run(["lint-table", "--ignore", "ratio", "--ignore", "speed-up", str(path)]) == 0
    assert "0 findings" in capsys.readouterr().out
    assert run(["lint-table", "--ignore", "speedup", str(path)]) == 10


def test_json_has_what_was_understood_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint-table", "--json", str(PUBLISHED / "pytorch-bert-2019.txt")]) == 19
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "slipway.lint/1"
    assert found["findings"][0] | {"path": ""} == {
        "rule": "speed-up", "path": "", "table": 10, "line": 13,
        "column": "Multi-gpu weak scaling with FP16", "printed": "3.80", "right": "3.56",
        "reason": "'Multi-gpu weak scaling with FP16' prints 3.80, and 92.68 / 26.04 is 3.56",
    }  # fmt: skip
    assert [one["kind"] for one in found["tables"][0]["columns"]][:4] == ["gpus", "micro_batch", "throughput", "throughput"]


def test_a_table_that_is_not_understood_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    path.write_text("| a | speedup | GPUs |\n|-|-|-|\n| x | 2 | 1 |\n| y | 7 | 1 |\n| z | fast | many |\n")
    assert found_in(path) == []


def test_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(PUBLISHED / "pytorch-nnunet.txt", tmp_path / "a.md")
    (tmp_path / "b.md").write_text("no table\n")
    assert run(["lint-table", str(tmp_path / "a.md"), str(tmp_path / "b.md")]) == 19
    assert capsys.readouterr().out.count(f"{tmp_path / 'a.md'}:") == 6
    assert run(["lint-table", str(tmp_path / "b.md")]) == 10


def test_a_batch_per_node_is_that_of_a_process_where_only_nodes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    table = (
        "| Nodes | Batch per node | Images/s | Speed-up |{more}\n|-|-|-|-|{rule}\n| 1 | 64 | 100 | 1 |{one}\n| 2 | 64 | 190 | 1.9 |{one}\n"
    )
    path.write_text("## Strong scaling\n\n" + table.format(more="", rule="", one=""))
    assert found_in(path) == [(3, "label", "weak")]
    path.write_text("## Strong scaling\n\n" + table.format(more=" GPUs per node |", rule="-|", one=" 4 |"))
    assert found_in(path) == []


def test_a_table_without_numbers_that_are_known_is_not_counted_as_understood(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.md"
    path.write_text("| step | what happens |\n|-|-|\n| train | ranks start |\n")
    assert run(["lint-table", str(path)]) == 0
    assert capsys.readouterr().out == "0 findings in 0 tables of 1; 0 speed-ups, efficiencies and ratios hold; 0 understood\n"
