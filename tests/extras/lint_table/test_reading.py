"""Files as people write them, and files that are no tables: each is read, or refused in one sentence."""

from pathlib import Path

import pytest

from base.errors import ConfigError
from extras.lint_table.columns import understand
from extras.lint_table.numbers import Interval, parse_cell
from extras.lint_table.reading import MAX_BYTES, MAX_CELLS, TextTable, read_tables
from extras.lint_table.relations import meanings
from extras.lint_table.rules import check_table
from workflow.commands.main import run


def read(path: Path, text: str | bytes) -> list[TextTable]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_tables(path)


def judged(path: Path, text: str | bytes) -> list[str]:
    tables = [understand(table) for table in read(path, text)]
    return [one.reason for table in tables for one in check_table(table, meanings(table))]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3.56", [(3.56, 0.01, "")]),
        ("1,234.5 img/s", [(1234.5, 0.1, "img/s")]),
        ("77.4 %", [(77.4, 0.1, "%")]),
        ("1.547×", [(1.547, 0.001, "x")]),
        ("~14 hours", [(14, 1, "hours")]),
        ("64 , 32", [(64, 1, ""), (32, 1, "")]),
        ("126 and 256", [(126, 1, ""), (256, 1, "")]),
        ("32/32", [(32, 1, ""), (32, 1, "")]),
        ("01:02:03", [(3723, 1, "s")]),
        ("1.2e3", [(1200, 100, "")]),
        ("2.88M", [(2.88e6, 1e4, "k")]),
        ("76.88 +/- 0.16", [(76.88, 0.32, "")]),
        *[(text, []) for text in ("-", "N/A", "OOM", "nan", "inf", "1e999", "< 3", "a/b", "", "١٢", "9" * 300, "1.2.3", "--5")],
    ],
)
def test_a_cell_is_a_number_a_list_or_nothing(text: str, numbers: list[tuple[float, float, str]]) -> None:
    found = parse_cell(text)
    assert [(one.value, float(f"{one.step:.6g}"), one.unit) for one in found] == numbers


def test_printed_digits_are_bounds() -> None:
    (printed,), (rate,), (one) = parse_cell("3.56"), parse_cell("92.68"), parse_cell("26.04")[0]
    quotient = rate.rounded.over(one.rounded)
    assert quotient is not None
    assert printed.rounded_or_cut.meets(quotient)
    assert not parse_cell("3.57")[0].rounded_or_cut.meets(quotient)
    assert rate.rounded.over(Interval(0.0, 1.0)) is None


def test_a_comma_between_semicolons_is_not_read(tmp_path: Path) -> None:
    for one, other in (("1.024,5", "3.990,1"), ("1,024", "3,990"), ("1024,5", "3990,1")):
        assert judged(tmp_path / "t.csv", f"GPUs;batch;images/s;Speedup\n1;8;{one};1\n4;8;{other};3,1\n") == []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    text = "größe;GPUs;batch per GPU;images/s;speedup\r\nx;1;8;100;1\r\nx;4;8;300;4\r\n"
    assert judged(tmp_path / "t.csv", text.encode(encoding)) == ["'speedup' prints 4, and 300 / 100 is 3"]


def test_several_tables_in_markdown_with_what_stands_around(tmp_path: Path) -> None:
    text = (
        "# A\n\nabout A\n\n## B\nbatch 3\n\n| a | b |\n|---|:-:|\n| 1 | `x\\|y` |\n\nTable 1: weak scaling\n\n"
        "### C\n```\n# no heading\n```\n"
        "a | b\n--|--\n[l](http://x) | <b>c</b><br>d &amp; e\nend\n"
    )
    first, second = read(tmp_path / "t.md", text)
    assert (first.line, first.headings, first.near, first.around) == (8, ("A", "B"), "batch 3\nTable 1: weak scaling", "\nabout A\nbatch 3")
    assert (first.rows[0].line, first.rows[0].cells) == (10, ("1", "x|y"))
    assert (second.line, second.headings, second.rows[0].cells) == (18, ("A", "B", "C"), ("l", "c d & e"))


def test_separated_values_with_titles_quotes_and_a_second_table(tmp_path: Path) -> None:
    text = '# a title, of two parts\na,b,c\n1,"x\ny",3\n4,5,6\n\nsecond\n#GPUs,d,e\n7,8,9\n10\n'
    first, second = read(tmp_path / "t.csv", text)
    assert (first.near, first.header) == ("a title, of two parts", ("a", "b", "c"))
    assert [(row.line, row.cells) for row in first.rows] == [(3, ("1", "x\ny", "3")), (5, ("4", "5", "6"))]
    assert (second.near, second.line, second.header, second.rows[1].cells) == ("second", 8, ("#GPUs", "d", "e"), ("10", "", ""))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    for content in (b"\x7fELF\0\0", b"\x89PNG\r\n\x1a\n", b"\xff\xfe\0", bytes(range(256))):
        with pytest.raises(ConfigError, match="not a text file"):
            read(tmp_path / "t.csv", content)
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        read_tables(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_tables(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"t.csv:2: .* field larger than field limit"):
        read(tmp_path / "t.csv", "a,b\n" + "x" * 200_000 + ",1\n")


def test_a_file_or_a_table_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "t.csv").open("wb") as file:
        file.truncate(2 * 2**30)
    with pytest.raises(ConfigError, match=f"larger than {MAX_BYTES // 2**20} MiB"):
        read_tables(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match=f"t.csv:1: .* is larger than {MAX_CELLS} cells"):
        read(tmp_path / "t.csv", ",".join("a" * 1000) + "\n" + "1\n" * 1000)


def test_tables_of_odd_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "\n\n", "a,b\n", "| a | b |\n|--|--|\n", "|--|--|\n|--|--|\n", "<table><tr><td>1"):
        assert read(tmp_path / "t.md", text) == []
    odd = "GPUs,batch per GPU,images/s,speedup\n1,8,nan,1\n2,8,inf,2\n-4,8,1e308,\n0,0,0,0\n8,8,1e-320,1e300\n\x1b[31m,,,\n"
    path = tmp_path / "odd.csv"
    path.write_text(odd)
    assert run(["lint-table", str(path)]) in (0, 19)
    assert "\x1b" not in capsys.readouterr().out


SMALL = "| GPUs | images/s |\n|---|---|\n| 1 | 100 |\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blanks.md", f"{' ' * 200_000}x\n\n{SMALL}"),
        ("heading.md", f"# a{' ' * 10_000}x\n\n{SMALL}"),
        ("head.csv", f"GPUs,{'throughput ' * 11_000}\n1,2\n"),
        ("rate.csv", f"GPUs,images/s {'a' * 100_000}\n1,2\n"),
        ("parallel.csv", f"GPUs,speed-up,images/s,{'model ' * 20_000}\n1,1,2,3\n2,2,4,3\n"),
        ("count.csv", f"GPUs,images/s\n8{' ' * 100_000}!,2\n"),
        ("rows.csv", "GPUs,images/s,speed-up\n" + "".join(f"{one},{100 * one},{one}\n" for one in range(1, 10_000))),
    ],
)
def test_what_is_made_to_keep_a_reader_busy_is_read_or_refused_at_once(name: str, text: str, tmp_path: Path) -> None:
    """Each took from half a minute to days."""
    path = tmp_path / name
    path.write_text(text)
    assert run(["lint-table", str(path)]) in (0, 10, 19)
