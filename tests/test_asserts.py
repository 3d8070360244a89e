"""No test asserts what cannot fail."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CANNOT_FAIL = (ast.Constant, ast.IfExp, ast.Tuple, ast.List, ast.JoinedStr)
"""A constant; one thing or another, of which one may be True; a condition and its message in brackets."""


def can_fail(test: ast.expr) -> bool:
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return not any(isinstance(part, CANNOT_FAIL) for part in parts)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """As ast.walk() gives them, but for what is in expressions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


@pytest.mark.slow  # it reads all tests: a second of a core, for what `make lint` would say if it knew how
def test_every_assertion_can_fail() -> None:
    found = {
        f"{path.name}:{node.lineno}": can_fail(node.test)
        for path in Path(__file__).parent.rglob("*.py")
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    }
    assert len(found) > 1000
    assert [place for place, good in found.items() if not good] == []
