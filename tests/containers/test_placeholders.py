"""Placeholders in the words of a command."""

from __future__ import annotations

from containers.placeholders import fill, names_in


def test_known_names_are_filled_in_and_other_braces_are_text() -> None:
    word = '{python}-{args.width} {unknown} {"a": 1} {} {Data}'
    assert fill(word, {"python": "py", "args.width": "8", "Data": "no"}) == 'py-8 {unknown} {"a": 1} {} {Data}'
    assert names_in(word) == ["python", "args.width", "unknown"]


def test_a_value_is_not_filled_in_again() -> None:
    assert fill("{args.text}{data}", {"args.text": "{data}", "data": "/d"}) == "{data}/d"
