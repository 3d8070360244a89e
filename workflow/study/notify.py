"""Define whom `notify` of a site or study file tells that a study has ended, or that a run of it has failed.

dag/notify.py sends the notifications.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

When = Literal["end", "failure"]


@dataclass(frozen=True, kw_only=True)
class Notify:
    """The people to tell, and when.

    `webhook_env`, `webhook_file`: where the webhook's URL is, which is a secret and in no file of a study.
    """

    mail: tuple[str, ...] = ()
    webhook_env: str | None = None
    webhook_file: Path | None = None
    when: tuple[When, ...] = ("end",)
