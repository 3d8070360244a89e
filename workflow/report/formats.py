"""A table as CSV, Markdown, LaTeX and HTML. Whatever a study, a record or a log says is text here, never markup or a formula."""

from __future__ import annotations

import csv
import functools
import html
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from workflow.report.digits import NONE
from workflow.report.style import STYLE, STYLE_SHA256
from workflow.report.table import Column, Table, Value, raised

CSP: Final = f"default-src 'none'; style-src 'sha256-{STYLE_SHA256}'; base-uri 'none'; form-action 'none'"
FORMULA: Final = (*"=+-@\t\r", *"\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}")
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
    for row in table.rows:
        marks = [f"{key}: {mark}" for key, value in zip(keys, row, strict=True) if value.marks for mark in sorted(value.marks)]
        writer.writerow([*(_plain(value.raw) for value in row), "; ".join(marks)])
    return out.getvalue()


def _plain(raw: str | float | int | None) -> str | float | int:
    if raw is None:
        return ""
    if isinstance(raw, str) and raw.startswith(FORMULA):
        return "'" + raw
    return raw


def to_markdown(table: Table) -> str:
    """A GitHub table with its caption above and its footnotes below."""
    columns, rows = shown(table)
    lines = [f"**{_md(table.title)}**", ""]
    if not rows:
        return "\n".join([*lines, _md(table.empty), ""])
    letters = table.letters()
    lines += ["| " + " | ".join(_md(column.title) for column in columns) + " |"]
    lines += ["|" + "|".join("---:" if column.number else "---" for column in columns) + "|"]
    marks = _once(lambda found: raised(_sorted(found, letters)))
    lines += ["| " + " | ".join([_md(value.text) + marks(value.marks) for value in row]) + " |" for row in rows]
    notes = [f"{raised([letter])} {_md(sentence)}  " for letter, sentence in table.footnotes()]
    return "\n".join([*lines, "", _md(table.caption), "", *notes, ""])


def to_latex(table: Table) -> str:
    """A `table` float with booktabs rules; needs \\usepackage{booktabs,textcomp}."""
    columns, rows = shown(table)
    letters = table.letters()
    marks = _once(lambda found: _tex_marks(_sorted(found, letters)))
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
            *notes,
            r"\end{table}",
            "",
        ]
    )


def to_html(table: Table) -> str:
    """A page of its own, without scripts or anything from elsewhere, so that it can be mailed or put into `snakemake --report`."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(table.title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{html_table(table)}\n</main></body></html>\n"
    )


def html_table(table: Table, most_rows: int | None = None) -> str:
    """The table alone, at most `most_rows` of it."""
    columns, rows = shown(table)
    title = html.escape(table.title)
    if not rows:
        return f'<p class="empty"><strong>{title}.</strong> {html.escape(table.empty)}</p>'
    letters = table.letters()
    heads = "".join(f'<th scope="col"{_class(column)}>{html.escape(column.title)}</th>' for column in columns)
    cut = rows if most_rows is None else rows[:most_rows]
    marks = _once(lambda found: _sup(_sorted(found, letters)))
    cells = [(_class(column), _class(column, muted=True)) for column in columns]
    body = "\n".join(
        ["<tr>" + "".join([_td(names, value, marks) for names, value in zip(cells, row, strict=True)]) + "</tr>" for row in cut]
    )
    more = (
        ""
        if len(cut) == len(rows)
        else f'<p class="note">The first {len(cut)} of {len(rows)} rows; all are in tables/{table.name}.csv.</p>'
    )
    notes = "".join(f"<li><sup>{letter}</sup> {html.escape(sentence)}</li>" for letter, sentence in table.footnotes())
    return (
        f'<figure class="table" id="table-{table.name}"><div class="scroll" role="region" tabindex="0" aria-label="{title}">'
        f"<table>\n<caption>{title}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n{more}"
        f"<figcaption>{html.escape(table.caption)}</figcaption>{f'<ul class=notes>{notes}</ul>' if notes else ''}</figure>"
    )


def shown(table: Table) -> tuple[list[Column], list[list[Value]]]:
    """Columns and rows without the columns that hold nothing; CSV keeps them."""
    nothing = ("", NONE)
    keep = [index for index in range(len(table.columns)) if any(row[index].text not in nothing for row in table.rows)]
    return [table.columns[index] for index in keep], [[row[index] for index in keep] for row in table.rows]


def _td(names: tuple[str, str], value: Value, marks: Callable[[frozenset[str]], str]) -> str:
    muted = value.muted and value.text not in ("", NONE)
    return f"<td{names[muted]}>{_html(value.text)}{marks(value.marks)}</td>"


def _sup(letters: Sequence[str]) -> str:
    return f"<sup>{' '.join(letters)}</sup>" if letters else ""


def _class(column: Column, muted: bool = False) -> str:
    names = [name for name, on in {"number": column.number, "wrap": column.wrap, "reason": muted}.items() if on]
    return f' class="{" ".join(names)}"' if names else ""


def _sorted(marks: frozenset[str], letters: dict[str, str]) -> list[str]:
    return sorted(letters[mark] for mark in marks)


def _once(function: Callable[[frozenset[str]], str]) -> Callable[[frozenset[str]], str]:
    """The same function, which works once for each set of marks: a table of 10^5 values has a few dozen of them."""
    return functools.cache(function)


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
