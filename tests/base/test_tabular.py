"""Tables in a given width: folded, and no word, number or path cut."""

import pytest

from base.tabular import tabulated, wrapped

HEADERS = ("cell", "memory", "note")
ROWS = [("lenet-digits-b32-n1-g1-8380a70504", "14.0 MB", "waits for storage"), ("resnet18-n2", "1,024.5 GB", "-")]


def test_what_fits_stands_in_lines() -> None:
    head, lines = tabulated(HEADERS, ROWS)
    assert head == ["cell                               memory      note"]
    assert lines == [
        "lenet-digits-b32-n1-g1-8380a70504  14.0 MB     waits for storage",
        "resnet18-n2                        1,024.5 GB  -",
    ]
    assert tabulated(HEADERS, ROWS, 64) == (head, lines)


def test_words_are_wrapped_first() -> None:
    rows = [("lenet", "14.0 MB", "waits for storage of the other site, 120 MB/s left")]
    assert tabulated(HEADERS, rows, 36) == (
        ["cell   memory   note"],
        ["lenet  14.0 MB  waits for storage of", "                the other site,", "                120 MB/s left"],
    )


def test_then_the_first_column_stands_above() -> None:
    head, lines = tabulated(HEADERS, ROWS, 40)
    assert head == ["cell", "  memory      note"]
    assert lines == ["lenet-digits-b32-n1-g1-8380a70504", "  14.0 MB     waits for storage", "resnet18-n2", "  1,024.5 GB  -"]


def test_then_every_value_stands_beside_its_header() -> None:
    head, lines = tabulated(("model", "1 process", "2 processes", "4 processes"), [("lenet", "1 (baseline)", "1.7 ±0.03", "-")] * 2, 24)
    assert head == []
    block = ["lenet", "  1 process    1", "               (baseline)", "  2 processes  1.7 ±0.03", "  4 processes  -"]
    assert lines == [*block, "", *block]


@pytest.mark.parametrize("width", range(1, 60))
def test_nothing_is_ever_cut(width: int) -> None:
    head, lines = tabulated(HEADERS, ROWS, width)
    assert {word for line in lines for word in line.split()} >= {word for row in ROWS for text in row for word in text.split()}
    assert sum("14.0 MB" in line for line in lines) == sum("1,024.5 GB" in line for line in lines) == 1


def test_a_number_keeps_its_unit_and_a_long_path_its_line() -> None:
    assert wrapped("about 12 GB in 3.5 s, at 40 % of /a/very/long/path/to/files", 12) == [
        "about 12 GB",
        "in 3.5 s, at",
        "40 % of",
        "/a/very/long/path/to/files",
    ]
    assert wrapped("", 10) == [""]
