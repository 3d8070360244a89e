"""Benchmarks are no tests and no room imports them: what they take from the rooms must be there all the same."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("base", "cluster", "containers", "data_prep", "workflow", "benchmarks")


def taken(path: Path) -> list[tuple[str, str]]:
    """Module and name of all that `path` imports from our rooms."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ROOMS
        for alias in node.names
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_takes_from_the_rooms_is_there(path: Path) -> None:
    for module, name in taken(path):
        found = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
        assert found, f"{path.name}: {module} has no {name}"
