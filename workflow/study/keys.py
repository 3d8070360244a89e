"""Check the kinds of values that stand in study and site files, and explain what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from base.names import is_name
from base.units import meant_duration, parse_duration
from workflow.study.loader import kind_of

T = TypeVar("T")
ABSENT: Any = None  # the default of keys without one: `null` in the file is an error for them

NAME_RULE = "lower-case letters, digits, '.', '_' and '-', first a letter or digit, at most 64, no '..'"
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
DURATION_PATTERN = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s)?$"


def wrong(found: object, valid: str) -> PydanticCustomError:
    """Make an error that explain.py prints as it is."""
    return PydanticCustomError("slipway", "{text}", {"text": f"found {kind_of(found)}; valid: {valid}"})


def _name(value: object) -> object:
    if not isinstance(value, str) or not is_name(value):
        small = isinstance(value, str) and is_name(value.lower())
        raise wrong(value, f"a name of {NAME_RULE}" + (f"; did you mean {str(value).lower()!r}?" if small else ""))
    return value


def amount(value: object, valid: str, parse: Callable[[str], float], meant: str | None = None) -> float:
    """Parse the text `value`, which must be more than nothing.

    `valid`, and `meant` where that is known, are for the error.
    """
    hint = f"; did you mean {meant}?" if meant else ""
    if not isinstance(value, str):
        raise wrong(value, valid + hint)
    try:
        found = parse(value)
    except (ValueError, OverflowError) as error:
        raise wrong(value, valid + hint) from error
    if found <= 0:
        raise wrong(value, f"{valid}, more than nothing")
    return found


def _duration(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    meant = meant_duration(value) if isinstance(value, str) else f"{value}s" if is_number else None
    return amount(value, "a number with its unit, such as 90s, 30m, 1h30m or 2d", lambda text: parse_duration(text).total_seconds(), meant)


def _text_line(value: object) -> object:
    if not isinstance(value, str) or not value or any(character < " " or character == "\x7f" for character in value):
        raise wrong(value, "one line of text without control characters")
    return value


Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
TextLine = Annotated[str, BeforeValidator(_text_line), WithJsonSchema({"type": "string", "minLength": 1})]
Seconds = Annotated[float, BeforeValidator(_duration), WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "minLength": 2})]
Count = Annotated[int, Strict(), Field(ge=1, le=10**9)]
NotNegative = Annotated[int, Strict(), Field(ge=0, le=10**9)]
Flag = Annotated[bool, Strict()]
Several = Annotated[tuple[T, ...], Field(min_length=1)]


class Part(BaseModel):
    """A mapping of the study file: unknown keys are errors, values do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=True)
