"""A table as CSV, Markdown, LaTeX and HTML. Whatever a study, a record or a log says is text here, never markup or a formula."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Final

from workflow.report.digits import NONE
from workflow.report.style import STYLE, STYLE_SHA256
from workflow.report.table import MOST_ROWS, Column, Table, Value, raised

CSP: Final = f"default-src 'none'; style-src 'sha256-{STYLE_SHA256}'; base-uri 'none'; form-action 'none'"
NOTHING: Final = ("", NONE)
"""Texts of a value that says nothing."""
FORMULA: Final = frozenset("=+-@\t\r\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}")
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
    """Values at full precision; a last column `marks` says `column: mark`. Text that a spreadsheet would run as a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*(column.key for column in table.columns), "marks"])
    keys = [column.key for column in table.columns]
    said: dict[tuple[frozenset[str], ...], str] = {}  # rows have the same marks again and again
    for row in table.rows:
        marks = tuple([value.marks for value in row])
        if marks not in said:
            said[marks] = "; ".join(f"{key}: {mark}" for key, found in zip(keys, marks, strict=True) for mark in sorted(found))
        raws = [value.raw for value in row]
        writer.writerow([*["'" + raw if type(raw) is str and raw[:1] in FORMULA else raw for raw in raws], said[marks]])
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Format a GitHub table with its caption above and its footnotes below."""
    columns, rows, more = shown(table)
    lines = [f"**{_md(table.title)}**", ""]
    if not rows:
        return "\n".join([*lines, _md(table.empty), ""])
    letters = table.letters()
    lines += ["| " + " | ".join(_md(column.title) for column in columns) + " |"]
    lines += ["|" + "|".join("---:" if column.number else "---" for column in columns) + "|"]
    marks = cache(lambda found: raised(_sorted(found, letters)))
    lines += ["| " + " | ".join([_md(value.text) + marks(value.marks) for value in row]) + " |" for row in rows]
    notes = [f"{raised([letter])} {_md(sentence)}  " for letter, sentence in table.footnotes()]
    return "\n".join([*lines, "", *([_md(more), ""] if more else []), _md(table.caption), "", *notes, ""])


def to_latex(table: Table) -> str:
    r"""Return a `table` float with booktabs rules, which needs \usepackage{booktabs,textcomp}."""
    columns, rows, more = shown(table)
    letters = table.letters()
    marks = cache(lambda found: _tex_marks(_sorted(found, letters)))
    body = [" & ".join([_tex(value.text) + marks(value.marks) for value in row]) + r" \\" for row in rows]
    if not rows:
        columns, body = [Column(key="", title=table.title, number=False)], [_tex(table.empty) + r" \\"]
    heads = " & ".join(_tex(column.title) for column in columns) + r" \\"
    notes = [rf"\par{{\footnotesize \textsuperscript{{{letter}}} {_tex(sentence)}\par}}" for letter, sentence in table.footnotes()]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs} and \usepackage{textcomp}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
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
    """Format a page of its own, without scripts or anything from elsewhere, so that it can be mailed or put into `snakemake --report`."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(table.title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{html_table(table)}\n</main></body></html>\n"
    )


def html_table(table: Table, most_rows: int | None = None, places: Container[str] = ()) -> str:
    """The table alone, at most `most_rows` of it (MOST_ROWS). What leads to one of `places` is a link to it."""
    columns, rows, left = shown(table, most_rows)
    title = html.escape(table.title)
    if not rows:
        return f'<p class="empty"><strong>{title}.</strong> {html.escape(table.empty)}</p>'
    letters = table.letters()
    folds = sum(column in table.columns[: table.folds] for column in columns)
    heads = "".join(
        f'<th scope="col"{_class(column, fold=index < folds)}>{html.escape(column.title)}</th>' for index, column in enumerate(columns)
    )
    heads = f'<th scope="col" class="folded">Which</th>{heads}' if folds else heads
    marks = cache(lambda found: _sup(_sorted(found, letters)))
    cells = [tuple(_class(column, muted=muted, fold=index < folds) for muted in (False, True)) for index, column in enumerate(columns)]
    leads = _linked(table, columns, rows, places) if table.leads and places else repeat(repeat(""))
    body = "\n".join(
        f"<tr>{_folded(columns[:folds], row[:folds])}"
        + "".join([_td(names, value, marks, lead) for names, value, lead in zip(cells, row, row_leads, strict=False)])
        + "</tr>"
        for row, row_leads in zip(rows, leads, strict=False)
    )
    more = f'<p class="note">{html.escape(left)}</p>' if left else ""
    said = dict(table.footnotes())
    notes = "".join(_note(mark, letter, said[letter], places) for mark, letter in letters.items())
    return (
        f'<figure class="table" id="table-{table.name}"><div class="scroll" role="region" tabindex="0" aria-label="{title}">'
        f"<table>\n<caption>{title}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n{more}"
        f"<figcaption>{html.escape(table.caption)}</figcaption>{f'<ul class=notes>{notes}</ul>' if notes else ''}</figure>"
    )


def shown(table: Table, most_rows: int | None = None) -> tuple[list[Column], list[list[Value]], str]:
    """Return columns, the first rows without the columns that hold nothing or that the caption states, and in words that there are more of
    them; CSV keeps all."""
    rows = table.rows[: MOST_ROWS if most_rows is None else most_rows]
    keep = [
        index for index, column in enumerate(table.columns) if not column.stated and any(row[index].text not in NOTHING for row in rows)
    ]
    more = f"The first {len(rows)} of {len(table.rows)} rows; all are in tables/{table.name}.csv." if len(rows) < len(table.rows) else ""
    return [table.columns[index] for index in keep], [[row[index] for index in keep] for row in rows], more


def _linked(table: Table, columns: Sequence[Column], rows: Sequence[Sequence[Value]], places: Container[str]) -> Iterator[list[str]]:
    """For each of the `columns` and `rows` that are shown where its value leads. Of the values of a row that lead to one place, the first
    is a stop of the tab key; the others are for whoever points at them."""
    keep = [table.columns.index(column) for column in columns]
    for row, leads in zip(rows, table.leads, strict=False):
        met: set[str] = set()
        found = []
        for lead, value in zip((leads[index] for index in keep), row, strict=True):
            linked = value.text not in NOTHING and lead and lead in places
            found.append(f'<a href="#{html.escape(lead)}"{" tabindex=-1" if lead in met else ""}>' if linked else "")
            met.update([lead] if linked else [])
        yield found


def _folded(columns: Sequence[Column], values: Sequence[Value]) -> str:
    """The first values of a row in one, for a narrow screen; a bare number with the title of its column."""
    texts = [(column.title.lower(), value.text) for column, value in zip(columns, values, strict=True) if value.text]
    words = [f"{title} {text}" if text[:1].isdecimal() and " " not in text else text for title, text in texts]
    return f'<td class="folded">{html.escape(", ".join(words))}</td>' if values else ""


def _note(mark: str, letter: str, said: str, places: Container[str]) -> str:
    sentence = html.escape(said)
    return f"<li><sup>{letter}</sup> " + (f'<a href="#mark-{mark}">{sentence}</a>' if f"mark-{mark}" in places else sentence) + "</li>"


def _td(names: Sequence[str], value: Value, marks: Callable[[frozenset[str]], str], lead: str) -> str:
    text = value.text
    muted = value.muted and text not in NOTHING
    linked = f"{lead}{_html(text)}</a>" if lead else _html(text)
    return f"<td{names[muted]}>{linked}{marks(value.marks)}</td>"


def _sup(letters: Sequence[str]) -> str:
    return f"<sup>{' '.join(letters)}</sup>" if letters else ""


def _class(column: Column, *, muted: bool = False, fold: bool = False) -> str:
    names = [name for name, on in {"number": column.number, "wrap": column.wrap, "reason": muted, "fold": fold}.items() if on]
    return f' class="{" ".join(names)}"' if names else ""


def _sorted(marks: frozenset[str], letters: dict[str, str]) -> list[str]:
    """Letters of a set of marks. Each format caches what it makes of them: a table of 10^5 values has a few dozen sets."""
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
