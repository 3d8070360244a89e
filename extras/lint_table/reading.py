"""Read the tables of a text file: pipe tables and HTML tables in Markdown, and comma-, semicolon- or tab-separated values."""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.untrusted import read_fed

MAX_BYTES: Final = 64 * 2**20
MAX_COLUMNS: Final = 1000
MAX_NEAR: Final = 4000
"""Characters of the text before a table that count as its caption."""
MAX_SPAN: Final = 100
MAX_HEAD: Final = 200
MAX_CELL: Final = 1000
"""Characters of a head and of a cell that are looked at: the patterns that are searched in them take time by the square."""
_SEPARATOR: Final = re.compile(r"\s*+\|?(\s*+:?-++:?\s*+\|)++(\s*+:?-++:?\s*+)?\|?\s*")
_HEADING: Final = re.compile(r"\s{0,3}(#{1,6})\s+(.*)")
_HTML_HEADING: Final = re.compile(r"<h([1-6])[^>]*>(.*?)</h\1>", re.IGNORECASE)
_TABLE_TAG: Final = re.compile(r"<table[\s>]", re.IGNORECASE)
_NO_TAG: Final = re.compile(r"""<(?![a-zA-Z/](?:[^<>"']++|"[^"]{0,2000}"|'[^']{0,2000}'){0,40}+>)""")
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
    delimiter: str = "|"


def read_tables(path: Path) -> list[TextTable]:
    """Return all tables of a file that have a header and a row, at most MAX_COLUMNS wide. Raises ConfigError for a file that cannot be
    read as text."""
    text = read_text(path)
    lines = text.splitlines()
    suffix = path.suffix.lower()
    if suffix in (".md", ".markdown", ".html", ".htm") or (
        suffix not in (".csv", ".tsv") and (_TABLE_TAG.search(text) or any(map(_SEPARATOR.fullmatch, lines)))
    ):
        return list(_marked_up(str(path), lines))
    return list(_separated(str(path), text))


def read_text(path: Path) -> str:
    """Return a file as text: UTF-8, UTF-16 with its mark, or Latin-1. Raises ConfigError where it cannot be read, or is no text."""
    try:
        content = read_fed(path, MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; give the part of it that holds the table")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode("latin-1") if encoding == "utf-8-sig" else "\0"
    if re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]", text):
        raise ConfigError(f"{path}: not a text file in UTF-8, UTF-16 with a byte order mark, or Latin-1")
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
        line = lines[index]
        fenced ^= bool(re.match(r"\s*(```|~~~)", line))
        heading = _HEADING.fullmatch(line) or _HTML_HEADING.search(line[:MAX_NEAR])
        level = 0 if not heading else len(heading[1]) if heading[1].startswith("#") else int(heading[1])
        end = index + 1
        if heading and (not fenced or level > 1):  # within code it is a comment; where a fence was not closed only a deeper one is seen
            sections = [one for one in sections if one.level < level] + [_Section(level, plain_text(heading[2].rstrip().rstrip("#")), [])]
        elif _TABLE_TAG.search(line):
            end = 1 + next((at for at in range(index, len(lines)) if "</table" in lines[at].lower()), len(lines) - 1)
            yield from _html_tables(path, lines, (index, end), sections)
        elif "|" in line and index + 1 < len(lines) and _SEPARATOR.fullmatch(lines[index + 1]) and not _SEPARATOR.fullmatch(line):
            end = next((at for at in range(index + 2, len(lines)) if "|" not in lines[at]), len(lines))
            rows = [(at + 1, pipe_cells(lines[at])) for at in (index, *range(index + 2, end))]
            yield from _table(path, rows, sections, _caption_below(lines, end), "|")
        elif line.strip():
            sections[-1].text.append(plain_text(line))
        index = end


def _caption_below(lines: Sequence[str], end: int) -> list[str]:
    below = next((line for line in lines[end : end + 3] if line.strip()), "")
    return [plain_text(below)] if _CAPTION.match(below) else []


def pipe_cells(line: str) -> list[str]:
    """Split a row of a pipe table at the bars that are not escaped."""
    parts = re.split(r"(?<!\\)\|", line.strip())
    if parts and not parts[0].strip():
        parts = parts[1:]
    if parts and not parts[-1].strip():
        parts = parts[:-1]
    return [plain_text(part) for part in parts]


def plain_text(text: str) -> str:
    """Return Markdown or HTML text without its markup."""
    text = re.sub(r"!?\[([^\]\[]*)\]\([^()\s]*\)", r"\1", text[:MAX_NEAR])
    text = html.unescape(re.sub(r"<br\s*/?>", " ", re.sub(r"<(?!br)/?[a-zA-Z][^<>]*>", "", text)))
    text = re.sub(r"\\([\\`*_{}\[\]()#+\-.!|~])", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"\*+|`+|^_+|_+$", "", text.strip())).strip()


class _HtmlTables(HTMLParser):
    """Collect the rows of the tables of a piece of HTML; merged cells stand in each place that they cover."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[tuple[int, list[str]]]] = []
        self.captions: list[str] = []
        self.text: list[str] | None = None
        self.in_row = False
        self.spans: tuple[int, int] = (1, 1)
        self.left: dict[int, tuple[int, str]] = {}
        """Column -> rows that a merged cell still covers, and its text."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th", "caption", "tr", "table"):
            self._end_cell()
        if tag == "table":
            self.in_row = False
            self.tables.append([])
            self.captions.append("")
            self.left = {}
        elif tag == "tr" and self.tables:
            self._end_row()
            self.tables[-1].append((self.getpos()[0], []))
            self.in_row = True
        elif tag in ("td", "th") and self.in_row:
            words = {name: value or "" for name, value in attrs}
            self.spans = (_span(words.get("rowspan", "")), _span(words.get("colspan", "")))
            self.text = []
        elif tag == "caption":
            self.spans, self.text = (0, 0), []
        elif tag == "br" and self.text is not None:
            self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "caption", "tr", "table"):
            self._end_cell()
        if tag in ("tr", "table") and self.tables:
            self._end_row()

    def handle_data(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data)

    def _end_cell(self) -> None:
        if self.text is None or not self.tables:
            return
        text, self.text = plain_text(html.escape("".join(self.text), quote=False)), None
        rows, columns = self.spans
        if not columns:
            self.captions[-1] = text
            return
        cells = self.tables[-1][-1][1]
        self._fill(cells)
        for _ in range(min(columns, MAX_COLUMNS + 1 - len(cells))):
            if rows > 1:
                self.left[len(cells)] = (rows, text)
            cells.append(text)

    def _end_row(self) -> None:
        if not self.in_row:
            return
        self.in_row = False
        self._fill(self.tables[-1][-1][1])
        self.left = {column: (rows - 1, text) for column, (rows, text) in self.left.items() if rows > 1}

    def _fill(self, cells: list[str]) -> None:
        while len(cells) in self.left and len(cells) <= MAX_COLUMNS:
            cells.append(self.left[len(cells)][1])


def _tags_only(text: str) -> str:
    """Return HTML without its comments, and without declarations and tags that do not end soon: HTMLParser looks for the end of each in all
    that follows."""
    first, *others = text.split("<!--")
    kept = [first]
    for other in others:
        comment, _, behind = other.partition("-->")
        kept += ["\n" * comment.count("\n"), behind]
    return _NO_TAG.sub("&lt;", "".join(kept))


def _span(text: str) -> int:
    return max(1, min(int(text), MAX_SPAN)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def _html_tables(path: str, lines: Sequence[str], part: tuple[int, int], sections: Sequence[_Section]) -> Iterator[TextTable]:
    parser = _HtmlTables()
    parser.feed(_tags_only("\n".join(lines[slice(*part)])))
    parser.close()
    for table, caption in zip(parser.tables, parser.captions, strict=True):
        rows = [(part[0] + line, cells) for line, cells in table if cells]
        yield from _table(path, rows, sections, [caption, *_caption_below(lines, part[1])], "<table>")


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
        counts = Counter(len(cells) for cells in csv.reader(lines, delimiter=sign) if len(cells) > 1)
        return max(((rows, columns) for columns, rows in counts.items()), default=(0, 0))

    try:
        return max((",", ";", "\t", "|"), key=evidence)
    except csv.Error:
        return ","


def _table(
    path: str, rows: Sequence[tuple[int, Sequence[str]]], sections: Sequence[_Section], captions: Sequence[str], delimiter: str
) -> Iterator[TextTable]:
    if len(rows) < 2 or not 2 <= len(rows[0][1]) <= MAX_COLUMNS:
        return
    (line, header), *others = rows
    width = len(header)
    yield TextTable(
        path=path,
        line=line,
        headings=tuple(section.heading for section in sections if section.heading),
        near=_end_of([*sections[-1].text, *captions]),
        around="\n".join(_end_of(section.text) for section in sections),
        header=tuple(_shortened(head, MAX_HEAD) for head in header),
        rows=tuple(
            Row(line=at, cells=tuple([*(_shortened(cell, MAX_CELL) for cell in cells[:width]), *[""] * (width - len(cells))]))
            for at, cells in others
        ),
        delimiter=delimiter,
    )


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else " ".join(text[: 10 * most].split())[:most]


def _end_of(texts: Sequence[str]) -> str:
    return "\n".join(text for text in texts[-50:] if text)[-MAX_NEAR:]
