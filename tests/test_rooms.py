"""Imports go one way: base <- cluster <- data_prep, containers <- workflow."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "base": {"base"},
    "cluster": {"base", "cluster"},
    "data_prep": {"base", "cluster", "data_prep"},
    "containers": {"base", "cluster", "containers"},
    "workflow": {"base", "cluster", "data_prep", "containers", "workflow"},
}
PLANNING = {"os", "subprocess", "socket", "shutil", "time", "random", "paramiko", "docker", "tempfile"}


@functools.cache
def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    paths = [*(ROOT / room).rglob("*.py")]
    assert paths
    for path in paths:
        wrong = (imported(path) & set(ROOMS)) - ROOMS[room]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_base_is_standard_library_only() -> None:
    import sys

    paths = [*(ROOT / "base").rglob("*.py")]
    assert paths
    for path in paths:
        assert imported(path) <= set(sys.stdlib_module_names) | {"base"}, path


def test_the_reader_and_the_programs_import_nothing_of_ours() -> None:
    paths = [*(ROOT / "data_prep" / "reader").rglob("*.py"), *(ROOT / "containers" / "frameworks").glob("*/*.py")]
    assert paths
    for path in paths:
        assert not imported(path) & set(ROOMS), path
