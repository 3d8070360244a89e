"""Make the list of the columns of each table, and the list of marks."""

from __future__ import annotations

from docs.markdown import code, table
from workflow.report.cells import MARKS, TESTS
from workflow.report.meanings import COLUMNS, meaning


def columns(name: str) -> str:
    """Format the columns of a table, without those of the cell."""
    return table(["column", "meaning"], ([code([key]), meaning(name, key) or ""] for key in COLUMNS[name]))


def marks(_: str) -> str:
    """Format each mark: its name, whether it is a fact or a test, and its sentence."""
    return table(["mark", "kind", "meaning"], ([code([mark]), "test" if mark in TESTS else "fact", text] for mark, text in MARKS.items()))
