"""Typed fields of a JSON object that somebody else may have written. Each raises ValueError or KeyError naming the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def count(plain: Mapping[str, Any], key: str) -> int:
    """A whole number from 0 on."""
    value = plain[key]
    require(_is_count(value), f"{key} is {value!r}, not a count")
    return int(value)


def counts(plain: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A list of whole numbers from 0 on."""
    values = plain[key]
    require(isinstance(values, list) and all(_is_count(value) for value in values), f"{key} is not a list of counts")
    return tuple(values)


def text(plain: Mapping[str, Any], key: str) -> str:
    """A string."""
    value = plain[key]
    require(isinstance(value, str), f"{key} is {value!r}, not text")
    return str(value)


def texts(plain: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of strings."""
    values = plain[key]
    require(isinstance(values, list) and all(isinstance(value, str) for value in values), f"{key} is not a list of texts")
    return tuple(values)


def numbers(plain: Mapping[str, Any], key: str) -> tuple[float, ...]:
    """A list of numbers."""
    values = plain[key]
    require(isinstance(values, list) and all(type(value) in (int, float) for value in values), f"{key} is not a list of numbers")
    return tuple(float(value) for value in values)


def size_or_none(plain: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """[height, width] or null."""
    value = plain[key]
    if value is None:
        return None
    require(isinstance(value, list) and len(value) == 2 and all(_is_count(side) for side in value), f"{key} is {value!r}")
    return value[0], value[1]


def mapping(plain: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A JSON object."""
    value = plain[key]
    require(isinstance(value, dict), f"{key} is not an object")
    return dict(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
