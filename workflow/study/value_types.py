"""Check the kinds of values that stand in study and site files, and explain what is wrong with them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from base.humanize import absolute_path, is_name, parse_duration
from workflow.study.loader import kind_of
from workflow.study.site import Notify, When

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
    meant = f"{value}s" if isinstance(value, int | float) and not isinstance(value, bool) else None
    return amount(value, "a number with its unit, such as 90s, 30m, 1h30m or 2d", lambda text: parse_duration(text).total_seconds(), meant)


def text_that(fits: Callable[[str], object], valid: str) -> BeforeValidator:
    """Return a check that a value is a text which `fits`. `valid` is for the error."""

    def checked(value: object) -> object:
        if not isinstance(value, str) or not fits(value):
            raise wrong(value, valid)
        return value

    return BeforeValidator(checked)


def _is_line(text: str) -> bool:
    return text != "" and not any(character < " " or character == "\x7f" for character in text)


_TEXT: Final = WithJsonSchema({"type": "string", "minLength": 1})
Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
TextLine = Annotated[str, text_that(_is_line, "one line of text without control characters"), _TEXT]
Seconds = Annotated[float, BeforeValidator(_duration), WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "minLength": 2})]
Count = Annotated[int, Strict(), Field(ge=1, le=10**9)]
NotNegative = Annotated[int, Strict(), Field(ge=0, le=10**9)]
Flag = Annotated[bool, Strict()]
Several = Annotated[tuple[T, ...], Field(min_length=1)]


class Part(BaseModel):
    """A mapping of the study file: unknown keys are errors, values do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_enum_values=True)


# Read the keys of `notify` in site and study files.


VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


Variable = Annotated[
    str,
    text_that(VARIABLE.fullmatch, "the name of an environment variable that holds the URL, which is a secret and does not stand here"),
    _TEXT,
]


class NotifyKeys(Part):
    """Who is told how a study ends. That nobody can be told is said, and fails nothing."""

    mail: tuple[TextLine, ...] = Field(default=(), description="mail addresses, served by this machine's own `/usr/sbin/sendmail`")
    webhook_env: Variable = Field(
        default=ABSENT, description='name of the environment variable with the URL of a webhook of Slack\'s form (`{"text": ...}`)'
    )
    webhook_file: TextLine = Field(default=ABSENT, description="file with that URL, of mode 0600 and yours; relative to this file")
    when: tuple[When, ...] = Field(
        default=Notify.when, description="`end`: the end of the study. `failure`: its first run with a result other than `ok`"
    )

    def resolved(self, folder: Path) -> Notify:
        """Return the notification with paths relative to `folder`. Raises ValueError."""
        file: Any = None if self.webhook_file is None else absolute_path(self.webhook_file, folder)
        return Notify(mail=self.mail, webhook_env=self.webhook_env, webhook_file=file, when=self.when)
