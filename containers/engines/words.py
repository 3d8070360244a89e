"""What the first process of a container may say to us, by type. It is checked, because a program in the container that somebody has taken
over could speak in its place."""

from __future__ import annotations

from typing import Annotated, Final, NotRequired, TypedDict

from base.typed import Pid, between

MAX_WORDS: Final = 1 << 20
"""Bytes of a line."""


class Listed(TypedDict):
    """How `nvidia-smi -L` in the container ended, and what it said."""

    code: int
    text: str


class Words(TypedDict):
    """One message of the watchdog: `up` (gpus), `started` (pids), `failed` (text, and whether the program is not there) and
    `ending` (text)."""

    say: str
    gpus: NotRequired[Listed | None]
    pids: NotRequired[list[Pid]]
    text: NotRequired[str]
    program: NotRequired[bool]


class End(TypedDict):
    """How a rank ended: its exit code, negative for a signal, and whether the kernel killed somebody for want of memory."""

    code: Annotated[int, between(-128, 255)]
    oom: bool
