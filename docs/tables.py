"""Make the list of tables with their columns, and the list of marks."""

from __future__ import annotations

from docs.markdown import code, table, wrapped
from workflow.report.cells import MARKS, TESTS
from workflow.report.meanings import ABOUT, COLUMNS, meaning
from workflow.report.tables import TABLES


def tables(_: str) -> str:
    """Format each table: its name, what its rows are, and its columns without those of the cell."""
    return "\n".join(_section(name) for name in TABLES)


def _section(name: str) -> str:
    rows = ([code([key]), COLUMNS[name][key] or meaning(name, key) or ""] for key in COLUMNS[name])
    return f"### {name}\n\n{wrapped(ABOUT[name])}.\n\n" + table(["column", "meaning"], rows)


def marks(_: str) -> str:
    """Format each mark: its name, whether it is a fact or a test, and its sentence."""
    return table(["mark", "kind", "meaning"], ([code([mark]), "test" if mark in TESTS else "fact", text] for mark, text in MARKS.items()))
