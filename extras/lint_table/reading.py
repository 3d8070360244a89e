"""Read the tables of a text file: pipe tables in Markdown, and comma-, semicolon- or tab-separated values."""

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.untrusted import read_fed

MAX_BYTES: Final = 64 * 2**20
MAX_CELLS: Final = 1_000_000
"""Cells of one table; a larger one is refused."""
MAX_LINE: Final = 4000
MAX_CELL: Final = 200
"""Characters of a line of text and of a cell that are kept: patterns are searched in them, which takes time by the square."""
_HEADING: Final = re.compile(r"\s{0,3}(#{1,6})\s+(.*)")
_CAPTION: Final = re.compile(r"\W*(table|tab\.|caption|note)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table; `line`: where it begins in its file, from 1."""

    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table as its file has it: text in rows that are all as long as `header`."""

    path: str
    line: int
    headings: tuple[str, ...]
    """The headings that it stands below, outermost first."""
    near: str
    """The text between the last heading and this table, and a caption below it."""
    around: str
    """The text of all sections that it stands in, each before its first heading further down."""
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    delimiter: str


def read_tables(path: Path) -> list[TextTable]:
    """Return all tables of a file that have a header and a row. Raises ConfigError for a file that cannot be read as text."""
    text = read_text(path)
    lines = text.splitlines()
    suffix = path.suffix.lower()
    is_separated = suffix in (".csv", ".tsv") or (suffix not in (".md", ".markdown", ".html") and not any(map(_is_separator, lines)))
    return list(_separated(str(path), text) if is_separated else _marked_up(str(path), lines))


def read_text(path: Path) -> str:
    """Return a file as text, UTF-8 or Latin-1. Raises ConfigError where it cannot be read, or is no text."""
    try:
        content = read_fed(path, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; give the part of it that holds the table")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    if re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]", text):
        raise ConfigError(f"{path}: not a text file in UTF-8 or Latin-1")
    return text


@dataclass
class _Section:
    """A heading, and the text below it that is not below another one."""

    level: int
    heading: str
    text: list[str]


def _marked_up(path: str, lines: Sequence[str]) -> Iterator[TextTable]:
    sections, fenced, index = [_Section(0, "", [])], False, 0
    while index < len(lines):
        line = lines[index][:MAX_LINE]
        fenced ^= bool(re.match(r"\s*(```|~~~)", line))
        heading = _HEADING.fullmatch(line)
        level = len(heading[1]) if heading else 0
        end = index + 1
        if heading and (not fenced or level > 1):  # within code it is a comment; where a fence was not closed only a deeper one is seen
            sections = [one for one in sections if one.level < level] + [_Section(level, plain_text(heading[2].rstrip().rstrip("#")), [])]
        elif "|" in line and index + 1 < len(lines) and _is_separator(lines[index + 1]) and not _is_separator(line):
            end = next((at for at in range(index + 2, len(lines)) if "|" not in lines[at]), len(lines))
            rows = [(at + 1, pipe_cells(lines[at])) for at in (index, *range(index + 2, end))]
            below = next((plain_text(line) for line in lines[end : end + 3] if line.strip()), "")
            yield from _table(path, rows, sections, [below] if _CAPTION.match(below) else [], "|")
        elif line.strip():
            sections[-1].text.append(plain_text(line))
        index = end


def _is_separator(line: str) -> bool:
    return "|" in line and all(re.fullmatch(r"\s*:?-+:?\s*", part) for part in line.strip().removeprefix("|").removesuffix("|").split("|"))


def pipe_cells(line: str) -> list[str]:
    """Split a row of a pipe table at the bars that are not escaped."""
    return [plain_text(part) for part in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))]


def plain_text(text: str) -> str:
    """Return Markdown text without its markup."""
    text = re.sub(r"!?\[([^\]\[]*)\]\([^()\s]*\)", r"\1", text[:MAX_LINE])
    text = html.unescape(re.sub(r"<br\s*/?>", " ", re.sub(r"<(?!br)/?[a-zA-Z][^<>]*>", "", text)))
    text = re.sub(r"\\([\\`*_{}\[\]()#+\-.!|~])", r"\1", text)
    return " ".join(re.sub(r"\*+|`+|^_+|_+$", "", text.strip()).split())


def _separated(path: str, text: str) -> Iterator[TextTable]:
    lines = text.splitlines()
    delimiter = _delimiter([line for line in lines[:200] if line.strip() and not line.startswith("#")][:50])
    section = _Section(0, "", [])
    block: list[tuple[int, list[str]]] = []
    for (line, cells), (_, following) in pairwise([*_records(path, text, delimiter), (0, []), (0, [])]):
        is_text = not block and (len(cells) == 1 or cells[:1] and cells[0].startswith("#") and len(cells) != len(following))
        if any(cells) and not is_text:
            block.append((line, cells))
        elif any(cells):
            section.text.append(plain_text(", ".join(cells).lstrip("# ")))
        elif block:
            yield from _table(path, block, [section], [], delimiter)
            block, section = [], _Section(0, "", [])


def _records(path: str, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    line = 1
    try:
        for cells in reader:
            yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: not a table of separated values: {error}") from error


def _delimiter(lines: Sequence[str]) -> str:
    """Return the sign that divides most lines into the same number of fields, at least two; a comma where none does."""

    def evidence(sign: str) -> tuple[int, int]:
        counts = Counter(len(line.split(sign)) for line in lines if sign in line)
        return max(((rows, columns) for columns, rows in counts.items()), default=(0, 0))

    return max((",", ";", "\t", "|"), key=evidence)


def _table(
    path: str, rows: Sequence[tuple[int, Sequence[str]]], sections: Sequence[_Section], captions: Sequence[str], delimiter: str
) -> Iterator[TextTable]:
    (line, header), *others = rows
    width = len(header)
    if not others or width < 2:
        return
    if width * len(rows) > MAX_CELLS:
        raise ConfigError(f"{path}:{line}: a table of {width} columns and {len(others)} rows is larger than {MAX_CELLS} cells")
    yield TextTable(
        path=path,
        line=line,
        headings=tuple(section.heading for section in sections if section.heading),
        near=_end_of([*sections[-1].text, *captions]),
        around="\n".join(_end_of(section.text) for section in sections),
        header=tuple(head[:MAX_CELL] for head in header),
        rows=tuple(Row(line=at, cells=tuple(cell[:MAX_CELL] for cell in [*cells, *[""] * width][:width])) for at, cells in others),
        delimiter=delimiter,
    )


def _end_of(texts: Sequence[str]) -> str:
    return "\n".join(text for text in texts[-50:] if text)[-MAX_LINE:]
