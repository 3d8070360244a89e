"""Read the keys of `notify` in site and study files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from base.userpath import absolute_path
from workflow.study.keys import ABSENT, Part, TextLine, wrong
from workflow.study.notify import Notify, When

ADDRESS: Final = re.compile(r"[A-Za-z0-9._%+=][A-Za-z0-9._%+=-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,252})?")
"""A user of this machine, or of another one; no beginning that a program takes for an option."""
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def _address(value: object) -> object:
    if not isinstance(value, str) or not ADDRESS.fullmatch(value):
        raise wrong(value, "an address such as ada@example.org")
    return value


def _variable(value: object) -> object:
    if not isinstance(value, str) or not VARIABLE.fullmatch(value):
        raise wrong(value, "the name of an environment variable that holds the URL, which is a secret and does not stand here")
    return value


_TEXT: Final = WithJsonSchema({"type": "string", "minLength": 1})
Address = Annotated[str, BeforeValidator(_address), _TEXT]
Variable = Annotated[str, BeforeValidator(_variable), _TEXT]


class NotifyKeys(Part):
    """Who is told how a study ends. That nobody can be told is said, and fails nothing."""

    mail: tuple[Address, ...] = Field(default=(), description="addresses, by this machine's own sendmail")
    webhook_env: Variable = Field(default=ABSENT, description="environment variable with the URL of a webhook of Slack's form")
    webhook_file: TextLine = Field(default=ABSENT, description="file of mode 0600 with that URL, relative to this file")
    when: tuple[When, ...] = Field(default=Notify.when, description="end: of the study; failure: the first run of it that fails")

    def resolved(self, folder: Path) -> Notify:
        """Return the notification with paths relative to `folder`. Raises ValueError."""
        file: Any = None if self.webhook_file is None else absolute_path(self.webhook_file, folder)
        return Notify(mail=self.mail, webhook_env=self.webhook_env, webhook_file=file, when=self.when)
