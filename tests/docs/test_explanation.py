"""The pages of explanation say what the code says: each mark has its advice, and the example by hand is what the tables compute."""

import re

from tests.docs.test_docs import CODE, read, rows
from workflow.report.cells import MARKS, TESTS, geometric_mean, log_sample, quantile, ratio

REPORT = "docs/explanation/reading-your-report.md"
NUMBERS = "docs/explanation/how-numbers-are-made.md"


def test_every_mark_has_one_row_with_what_to_do() -> None:
    advised = [mark for row in rows(REPORT) if len(row) == 3 for mark in CODE.findall(row[0]) if mark in MARKS]
    assert sorted(advised) == sorted(MARKS)


def test_the_marks_that_are_tests_are_said_to_be() -> None:
    (sentence,) = re.findall(r"marks are tests: ([^.]*)\.", read(NUMBERS))
    assert set(CODE.findall(sentence)) == TESTS


def test_the_example_by_hand_is_what_the_tables_compute() -> None:
    runs = [row for row in rows(NUMBERS) if len(row) == 4 and row[0].isdecimal()]
    repeats = [int(row[0]) for row in runs]
    below, above = (log_sample([float(row[column]) for row in runs], repeats) for column in (1, 2))
    speedup = ratio(above, below)
    assert speedup.paired
    assert speedup.low is not None
    assert speedup.high is not None
    text = read(NUMBERS)
    differences = [one[1] - other[1] for one, other in zip(above.by_block, below.by_block, strict=True)]
    assert [row[3] for row in runs] == [f"{difference:.4f}" for difference in differences]
    for shown in (
        f"X₀ = {geometric_mean(below).value:.1f}",
        f"X = {geometric_mean(above).value:.1f}",
        f"t = {quantile(2):.3f}",
        f"S = exp({above.mean - below.mean:.4f}) = {speedup.value:.3f}",
        f"= [{speedup.low:.3f}, {speedup.high:.3f}]",
        f"E = {speedup.value:.3f} / 2 = {speedup.value / 2:.1%}".replace("%", " %"),
        f"[{speedup.low / 2:.1%}, {speedup.high / 2:.1%}]".replace("%", " %"),
    ):
        assert shown in text, shown
