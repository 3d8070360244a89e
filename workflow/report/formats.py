"""Format a table as CSV, Markdown, LaTeX and HTML. Whatever a study, a record or a log says is text here, never markup or a formula.

great_tables 1.1 was tried for LaTeX and HTML (2026-11-27): a table of 1,000 rows and 14 columns takes 0.36 s and 0.45 s of a core there,
without footnotes, and 0.013 s and 0.011 s here; it has no Markdown, brings babel and nine other packages, and styles of its own, which the
pages' content security policy refuses.
"""

import base64
import csv
import hashlib
import html
import io
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat, takewhile
from pathlib import Path
from string import Template
from typing import Final

from workflow.report.cells import MARKS
from workflow.report.meanings import meaning
from workflow.report.table_type import MAX_ROWS, NONE, Column, Table, Value, raised, words

# Colours and the one style sheet. Pages name it by its hash, so that no other style, and nothing from elsewhere, has any effect.


INK: Final = "#1f2328"
MUTED: Final = "#57606a"
GRID: Final = "#dfe3e8"
IDEAL: Final = "#8c959f"
# Told apart by people who see colours otherwise, readable on white and on nearly black; shapes say the same a second time.
SERIES: Final = ("#0f6cbd", "#d9730d", "#11875d", "#b4469b", "#c4a000", "#2aa3a3", "#8250df", "#cf4444", "#6b7f1e", "#8a6552")
EMPTY: Final = "Nothing is drawn: "
"""The beginning of what a screen reader reads in the place of a plot without data."""
STEPS: Final = {
    "assign": "#a3a9b2",
    "stage": "#2aa3a3",
    "train": "#0f6cbd",
    "result": "#c4a000",
    "push": "#d9730d",
    "release": "#b4469b",
}

SHEET: Final = Template(Path(__file__).with_name("page.css").read_text("utf-8"))
STYLE: Final = SHEET.substitute(ink=INK, muted=MUTED, grid=GRID)

STYLE_SHA256: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()


CSP: Final = f"default-src 'none'; style-src 'sha256-{STYLE_SHA256}'; base-uri 'none'; form-action 'none'"
NOTHING: Final = ("", NONE)
DENSE: Final = 10
"""Columns of a table from which on it is set in smaller type, so that it fits a screen of 1400 px."""
TALL: Final = 30
"""Rows of a table beyond which it scrolls in itself, below a head that stays."""
_SENTENCE: Final = re.compile(r"(?<=\.) (?=[A-Z\[\N{PLUS-MINUS SIGN}\N{EN DASH}])")
FORMULA: Final = frozenset("=+-@\t\r\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}")
_CODE: Final = re.compile(r"`([^`]+)`")
_UNBROKEN: Final = re.compile(r"\[[\d.,\N{EN DASH} ]+\]| %")
_LATEX: Final = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "|": r"\textbar{}", "\n": " / "}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$"}
    | {"\N{EN DASH}": "--", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}", "\N{MIDDLE DOT}": r"\textperiodcentered{}"}
)
_MARKDOWN: Final = str.maketrans(
    {character: f"\\{character}" for character in "\\`*_[]|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " / "}
)


def to_csv(table: Table) -> str:
    """Format values at full precision; a last column `marks` says `column: mark`. Formulas of a spreadsheet are quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(column.key for column in table.columns), "marks"])
    marked = [column for column in table.columns if column.marks]
    keys = [column.key for column in marked]
    in_words = cache(lambda row: "; ".join(f"{key}: {mark}" for key, marks in zip(keys, row, strict=True) for mark in sorted(marks)))
    notes = map(in_words, zip(*(column.marks for column in marked), strict=True)) if marked else repeat("")
    raws = [[_no_formula(raw) for raw in column.raws] if column.show is str else column.raws for column in table.columns]
    writer.writerows(zip(*raws, notes, strict=False))
    return out.getvalue()


def _no_formula(raw: str | float | int | None) -> str | float | int | None:
    return "'" + raw if isinstance(raw, str) and raw[:1] in FORMULA else raw


def to_values(table: Table) -> dict[str, object]:
    """Return a JSON-able table: what its CSV has, with the marks of each value beside it.

    A value that was not measured is null, or the reason; `marks` says what a reader has to know of a number.
    """
    keys = [column.key for column in table.columns]
    rows = []
    for row in table.rows:
        marks = {key: sorted(value.marks) for key, value in zip(keys, row, strict=True) if value.marks}
        rows.append({**{key: value.raw for key, value in zip(keys, row, strict=True)}, "marks": marks})
    return {"table": table.name, "rows": rows, "marks": {mark: MARKS[mark] for mark in table.letters}}


def to_markdown(table: Table) -> str:
    """Format a GitHub table, its caption above and its footnotes below."""
    columns, rows, more = shown(table)
    lines = [f"**{_md(table.title)}**", ""]
    if not rows:
        return "\n".join([*lines, _md(table.empty), ""])
    lines += ["| " + " | ".join(_md(column.title) for column in columns) + " |"]
    lines += ["|" + "|".join("---:" if column.number else "---" for column in columns) + "|"]
    marks = cache(lambda found: raised(_sorted(found, table.letters)))
    lines += ["| " + " | ".join([_md(value.text) + marks(value.marks) for value in row]) + " |" for row in rows]
    notes = [f"{raised([letter])} {mark}: {_md(sentence)}  " for letter, mark, sentence in table.footnotes()]
    return "\n".join([*lines, "", *([_md(more), ""] if more else []), _md(table.caption), "", *notes, ""])


def to_latex(table: Table) -> str:
    r"""Return a `table` float with booktabs rules, which needs \usepackage{booktabs,textcomp}."""
    columns, rows, more = shown(table)
    marks = cache(lambda found: _tex_marks(_sorted(found, table.letters)))
    body = [" & ".join([_tex(value.text) + marks(value.marks) for value in row]) + r" \\" for row in rows]
    if not rows:
        columns, body = [words("", table.title, ())], [_tex(table.empty) + r" \\"]
    heads = " & ".join(_tex(column.title) for column in columns) + r" \\"
    notes = [
        rf"\par{{\footnotesize \textsuperscript{{{letter}}} {_tex(f'{mark}: {sentence}')}\par}}"
        for letter, mark, sentence in table.footnotes()
    ]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs} and \usepackage{textcomp}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(f'{table.title}. {table.caption}' if rows else table.title)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{''.join('r' if column.number else 'l' for column in columns)}}}",
            r"\toprule",
            heads,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *([rf"\par{{\footnotesize {_tex(more)}\par}}"] if more else []),
            *notes,
            r"\end{table}",
            "",
        ]
    )


def to_html(table: Table) -> str:
    """Format a page without scripts or external files, which can be mailed or put into `snakemake --report`."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(table.title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{html_table(table)}\n</main></body></html>\n"
    )


@dataclass(frozen=True)
class Explained:
    """What a page has explained so far. A mark has one letter in all tables of the page, and a sentence is printed once."""

    letters: Mapping[str, str]
    sentences: set[str] = field(default_factory=set)

    def new(self, text: str) -> str:
        """Return the sentences of a text that the page does not have yet."""
        found = [sentence for sentence in _SENTENCE.split(text) if sentence and sentence not in self.sentences]
        self.sentences.update(found)
        return " ".join(found)


def html_table(table: Table, most_rows: int = MAX_ROWS, anchors: Container[str] = (), explained: Explained | None = None) -> str:
    """Format the table alone, at most `most_rows` of it. Values that lead to one of `anchors` are links; `explained`: as on the page."""
    explained = explained or Explained(table.letters)
    columns, rows, left = shown(table, most_rows)
    title = html.escape(table.title)
    if not rows:
        return f'<p class="empty"><strong>{title}.</strong> {html.escape(table.empty)}</p>'
    folds = sum(1 for _ in takewhile(lambda column: column.folds, columns))
    heads = "".join(
        f'<th scope="col"{_class(column, fold=index < folds)}{_tip(table.name, column.key)}>{html.escape(column.title)}</th>'
        for index, column in enumerate(columns)
    )
    heads = f'<th scope="col" class="folded">Which</th>{heads}' if folds else heads
    letters = explained.letters
    marks = cache(lambda found: _sup([letters[mark] for mark in letters if mark in found]))
    classes = [tuple(_class(column, muted=muted, fold=index < folds) for muted in (False, True)) for index, column in enumerate(columns)]
    body = "\n".join(
        f"<tr>{_folded(columns[:folds], row[:folds])}"
        + "".join([_td(names, value, marks, link) for names, value, link in zip(classes, row, _row_links(row, anchors), strict=True)])
        + "</tr>"
        for row in rows
    )
    more = f'<p class="note">{html.escape(left)}</p>' if left else ""
    notes = footnotes([(mark, explained.new(sentence)) for _, mark, sentence in table.footnotes()], letters, anchors)
    caption = coded(explained.new(table.caption))
    size = " ".join(["scroll", *["tall"] * (len(rows) > TALL), *["dense"] * (len(columns) >= DENSE)])
    return (
        f'<figure class="table" id="table-{table.name}"><div class="{size}" role="group" tabindex="0" aria-label="{title}">'
        f"<table>\n<caption>{title}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n{more}"
        f"{f'<figcaption>{caption}</figcaption>' if caption else ''}{notes}</figure>"
    )


def _tip(table: str, key: str) -> str:
    found = _CODE.sub(r"\1", meaning(table, key) or "")
    return f' title="{html.escape(found)}"' if found else ""


def coded(text: str) -> str:
    """Return a sentence as HTML, with what stands between its backticks as code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def shown(table: Table, most_rows: int = MAX_ROWS) -> tuple[list[Column], list[list[Value]], str]:
    """Return the first rows, their columns without those that are empty or that the caption states, and a note on the rows left out."""
    rows = table.first_rows[:most_rows] if most_rows <= MAX_ROWS else table.rows
    keep = [
        index for index, column in enumerate(table.columns) if not column.stated and any(row[index].text not in NOTHING for row in rows)
    ]
    more = f"The first {len(rows)} of {table.num_rows} rows; all are in tables/{table.name}.csv." if len(rows) < table.num_rows else ""
    return [table.columns[index] for index in keep], [[row[index] for index in keep] for row in rows], more


def _row_links(row: Sequence[Value], anchors: Container[str]) -> Iterator[str]:
    """Yield the link tag of each value of a row. Of the values that lead to one place only the first is a link: the others were a third of
    a page, and underlined every number."""
    met: set[str] = set()
    for value in row:
        link = value.link if value.link and value.text not in NOTHING and value.link in anchors and value.link not in met else ""
        yield f'<a href="#{html.escape(link)}">' if link else ""
        met.add(link)


def _folded(columns: Sequence[Column], values: Sequence[Value]) -> str:
    """Join the first values of a row for a narrow screen; a bare number has the title of its column."""
    texts = [(column.title.lower(), value.text) for column, value in zip(columns, values, strict=True) if value.text]
    words = [f"{title} {text}" if text[:1].isdecimal() and " " not in text else text for title, text in texts]
    return f'<td class="folded">{html.escape(", ".join(words))}</td>' if values else ""


def footnotes(notes: Iterable[tuple[str, str]], letters: Mapping[str, str], anchors: Container[str]) -> str:
    """Format marks with their sentences. One that the page has explained above is the mark alone."""
    found = []
    for mark, sentence in notes:
        text = coded(f"{mark}: {sentence}" if sentence else mark)
        linked = f'<a href="#mark-{mark}">{text}</a>' if f"mark-{mark}" in anchors else text
        found.append(f"<li{'' if sentence else ' class=again'}><sup>{letters[mark]}</sup> {linked}</li>")
    return f"<ul class=notes>{''.join(found)}</ul>" if found else ""


def _td(names: Sequence[str], value: Value, marks: Callable[[frozenset[str]], str], link: str) -> str:
    text = value.text
    muted = value.is_reason and text not in NOTHING
    shown = _html(unbroken(text))
    linked = f"{link}{shown}</a>" if link else shown
    return f"<td{names[muted]}>{linked}{marks(value.marks)}</td>"


def _sup(letters: Sequence[str]) -> str:
    return f"<sup>{' '.join(letters)}</sup>" if letters else ""


def unbroken(text: str) -> str:
    """Return a text that breaks neither inside of an interval nor before the sign of a percentage."""
    return _UNBROKEN.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text) if " " in text else text


def _class(column: Column, *, muted: bool = False, fold: bool = False) -> str:
    names = [name for name, on in {"number": column.number, "wrap": column.wrap, "reason": muted, "fold": fold}.items() if on]
    return f' class="{" ".join(names)}"' if names else ""


def _sorted(marks: frozenset[str], letters: dict[str, str]) -> list[str]:
    return sorted(letters[mark] for mark in marks)


def _html(value: str) -> str:
    return value if value.isalnum() else html.escape(value)


def _md(value: str) -> str:
    return value if value.isalnum() else value.translate(_MARKDOWN)


def _tex(value: str) -> str:
    return value if value.isalnum() else value.translate(_LATEX)


def _tex_marks(letters: Iterable[str]) -> str:
    found = ",".join(letters)
    return rf"\textsuperscript{{{found}}}" if found else ""


FORMATS: Final[dict[str, Callable[[Table], str]]] = {"csv": to_csv, "md": to_markdown, "tex": to_latex, "html": to_html}
