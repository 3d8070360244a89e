"""Exclude expressions: what they say, and that they are no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from base.errors import ConfigError
from workflow.study.matrix import compile_expression

CELL: Mapping[str, Any] = {"model": "lenet", "batch_size": 32, "nodes": 2, "save_parameters": True, "epochs": None}
NAMES = tuple(CELL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model == 'lenet'", True),
        ("model != 'lenet'", False),
        ("model == 'lenet' and batch_size > 32", False),
        ("model == 'lenet' or batch_size > 32", True),
        ("not nodes < 2", True),
        ("1 <= nodes <= 2", True),
        ("1 < nodes < 2", False),
        ("batch_size in [16, 32]", True),
        ("batch_size not in (16, 32)", False),
        ("model in ['a', 'b']", False),
        ("save_parameters", True),
        ("save_parameters == true and not false", True),
        ("epochs == None", True),
        ("nodes > -1", True),
        ("nodes == 2.0", True),
        ("  (model == 'lenet'\n and nodes == 2)  ", True),
    ],
)
def test_values(text: str, expected: bool) -> None:
    assert compile_expression(text, NAMES)(CELL) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nodes +",
        "nodes = 1",
        "nodes + 1 == 3",
        "len(model) == 5",
        "__import__('os')",
        "model.upper() == 'A'",
        "model[0] == 'l'",
        "(lambda: 1)() == 1",
        "[x for x in (1,)] == 1",
        "nodes is 2",
        "'a' in model",
        "nodes in [batch_size]",
        "nodes == 1 if nodes else 2",
        "f'{nodes}' == '2'",
        "b'x' == model",
        "nodes == 1j",
        "nodes == ...",
        "(n := 3) == 3",
        "-model == 1",
        "~nodes == 1",
        "nodes ** 99999 > 1",
        "*nodes",
        "{1: 2}",
        "1",
        "'x'",
        "nodes == 1; nodes == 2",
        "import os",
        "nodes == '\0'",
        "a" * 1025,
        "(" * 500 + "nodes" + ")" * 500,
        "not " * 250 + "nodes",
        "nodes == 1" + " or nodes == 1" * 100,
        "[" * 100 + "]" * 100 + " == nodes",
        "\ud800 == 1",
    ],
)
def test_no_code(text: str) -> None:
    with pytest.raises(ConfigError):
        compile_expression(text, NAMES)


def test_depth_is_bounded() -> None:
    with pytest.raises(ConfigError, match="more than 20 levels"):
        compile_expression("not " * 21 + "save_parameters", NAMES)


def test_kinds_are_compared_with_a_message() -> None:
    with pytest.raises(ConfigError, match="different kinds"):
        compile_expression("model > 3", NAMES)(CELL)
