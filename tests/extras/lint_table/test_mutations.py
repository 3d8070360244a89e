"""Tables that hold have no finding, in any form; each of their numbers, changed alone, has one."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from extras.lint_table.columns import understand
from extras.lint_table.reading import read_tables
from extras.lint_table.relations import meanings
from extras.lint_table.rules import Finding, Rule, check_table
from tests.extras.lint_table.tables import FORMS, TABLES, Made


def findings(table: Made, tmp_path: Path, form: str = "markdown") -> list[Finding]:
    name, write = FORMS[form]
    path = tmp_path / name
    path.write_text(write(table), encoding="utf-8")
    tables = [understand(one) for one in read_tables(path)]
    assert len(tables) == 1
    return [one for found in tables for one in check_table(found, meanings(found))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_holds_has_no_finding(kind: str, form: str, tmp_path: Path) -> None:
    for seed in range(30 if form == "markdown" else 5):
        assert findings(TABLES[kind](seed), tmp_path, form) == [], seed


def times(text: str, factor: float) -> str:
    """The number of a cell times a factor, with as many digits and what stands behind it."""
    number = text.rstrip(" %xBGMsh/")
    return f"{float(number) * factor:.{len(number.partition('.')[2])}f}{text[len(number) :]}"


RATES = ("Throughput (img/s)", "time to train (min)", "Throughput - FP32 (sequences/sec)", "Throughput - mixed precision")
SPEEDUPS = ("Weak scaling", "speedup", "Weak scaling - FP32", "Weak scaling - mixed precision")
RATIOS = ("Throughput speedup (FP32 - mixed precision)",)
EFFICIENCIES = ("Efficiency", "parallel efficiency")
WHOLE = ("Batch size / GPU", "Global batch", "micro_batch_size", "grad_accumulation_steps", "global_batch_size", "GPUs", "num_nodes")


def mutations(table: Made, state: random.Random) -> Iterator[tuple[Made, set[Rule], str]]:
    """Each number of the table changed alone: the table, and the rules of which one has to find it."""
    of_series = {Rule.SPEEDUP, Rule.EFFICIENCY, Rule.RATIO, Rule.SUPERLINEAR, Rule.RISING, Rule.BASE_ROW}
    for row in range(len(table.rows)):
        for column in table.header:
            text = table.text(row, column)
            if column in (*RATES, *SPEEDUPS, *RATIOS, *EFFICIENCIES):
                yield table.changed(row, column, times(text, state.choice((0.8, 0.9, 1.1, 1.25)))), of_series, column
            elif column in WHOLE and {"Global batch", "global_batch_size"} & {*table.header}:
                changed = table.changed(row, column, times(text, state.choice((2, 3))))
                yield changed, {Rule.INTEGERS, Rule.BASE_ROW, Rule.BATCH, *of_series}, column
            elif column in ("GPU model", "image digest"):
                yield table.changed(row, column, "H200"), {Rule.MIXED}, column


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TABLES)
def test_every_changed_number_is_found(kind: str, form: str, tmp_path: Path) -> None:
    for seed in range(2 if form == "markdown" else 1):
        for changed, rules, column in mutations(TABLES[kind](seed), random.Random(seed)):
            found = findings(changed, tmp_path, form)
            assert {one.rule for one in found} & rules, (seed, column, changed, found)


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_label_is_found(form: str, tmp_path: Path) -> None:
    for seed in range(3):
        weak, strong = TABLES["weak"](seed), TABLES["strong"](seed)
        header = tuple(title.replace("Weak", "Strong") for title in weak.header)
        (one,) = findings(Made(weak.title, header, weak.rows), tmp_path, form)
        assert (one.rule, one.right) == (Rule.LABEL, "weak")
        (one,) = findings(Made("Weak scaling of BERT", strong.header, strong.rows), tmp_path, form)
        assert (one.rule, one.right) == (Rule.LABEL, "strong")


def test_a_table_without_any_batch_is_found(tmp_path: Path) -> None:
    table = TABLES["weak"](3)
    without = Made("ResNet-50", (table.header[0], *table.header[3:]), tuple((cells[0], *cells[3:]) for cells in table.rows))
    assert [one.rule for one in findings(without, tmp_path)] == [Rule.MISSING_BATCH]
    assert findings(Made("ResNet-50, batch 32", without.header, without.rows), tmp_path) == []


def test_a_row_relative_to_another_batch_is_found(tmp_path: Path) -> None:
    header = ("GPUs", "batch per GPU", "samples/s", "speed-up")
    rows = (("1", "32", "100.0", "1.00"), ("1", "64", "120.0", "1.00"), ("4", "32", "380.0", "3.80"), ("4", "64", "440.0", "3.67"))
    assert findings(Made("t", header, rows), tmp_path) == []
    (one,) = findings(Made("t", header, (*rows[:3], ("4", "64", "440.0", "4.40"))), tmp_path)
    assert (one.rule, one.right, one.line) == (Rule.BASE_ROW, "3.67", 8)
    assert "relative to line 5 (batch 32 per GPU)" in one.reason


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (("GPUs", "batch per GPU", "step time (ms)", "speedup"), (("1", "32", "100.0", "1.00"), ("4", "32", "110.0", "3.64"))),
        (("N", "batch", "time (s)", "efficiency"), (("1", "8", "100.0", "1.00"), ("4", "8", "110.0", "0.91"), ("8", "8", "125.0", "0.80"))),
        (("N", "batch", "T(N) [s]", "S(N)", "E(N)"), (("1", "8", "100.0", "1", "1"), ("2", "8", "55.0", "1.82", "0.91"))),
        (("GPUs", "batch", "time per epoch (s)", "speedup"), (("8", "8", "100.0", "8.00"), ("16", "8", "55.0", "14.55"))),
        (
            ("GPUs", "MBS", "GBS", "tokens/s/GPU", "scaling efficiency"),
            (("8", "2", "16", "1000.0", "100%"), ("16", "2", "32", "950.0", "95.0%")),
        ),
    ],
)
def test_times_may_be_of_work_that_grows_and_bases_of_several_gpus(
    header: tuple[str, ...], rows: tuple[tuple[str, ...], ...], tmp_path: Path
) -> None:
    assert findings(Made("t", header, rows), tmp_path) == []
    wrong = (*rows[-1][:-1], rows[-1][-1].replace(rows[-1][-1].rstrip(" %"), times(rows[-1][-1].rstrip(" %"), 1.1)))
    assert [one.line for one in findings(Made("t", header, (*rows[:-1], wrong)), tmp_path)] == [4 + len(rows)]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (
            ("Model", "SeqLen (T)", "# GPUs", "MicroBatchSize", "GradAccum", "GlobalBatchSize", "Throughput (T/s)"),
            (
                ("7b", "1024", "8", "2", "6", "96", "37130"),
                ("1b", "1024", "16", "4", "2", "128", "120500"),
                ("1b", "512", "32", "4", "1", "128", "630500"),
            ),
        ),
        (("Threads", "Wall Time", "System Time", "Speedup"), (("1", "16.00", "0.57", "1.00"), ("2", "8.20", "0.55", "1.95"))),
        (("processes", "Avg Time(s)", "Speedup"), (("1", "16.00", "1.00"), ("2", "8.20", "1.95"))),
        (("N CPUs", "rows/s", "Speedup"), (("1", "16.00", "1.00"), ("2", "31.22", "1.95"))),
    ],
    ids=["names of other networks and lengths", "time in the system", "a program without batches", "rates over cores"],
)
def test_heads_of_other_projects_cause_no_false_alarm(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...], tmp_path: Path) -> None:
    assert findings(Made("t", header, rows), tmp_path) == []
    wrong = (*rows[:-1], (*rows[-1][:-1], times(rows[-1][-1], 1.1)))
    assert [one.line for one in findings(Made("t", header, wrong), tmp_path)] == ([4 + len(rows)] if header[-1] == "Speedup" else [])
