"""How an argv becomes the one line that a login shell there gets, and how its answer is told from what that shell says by itself.

The login shell may be sh, csh or fish, which quote in three ways. So the words are quoted once, by shlex for sh, and what is no plain
character of that travels as octal numbers, which every shell leaves alone between single quotes. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./- ")
MAX_LINE: Final = 100_000
"""Bytes: the kernel there takes 128 KiB for one word."""


def remote_line(argv: Sequence[str], word: str) -> str:
    """The line that runs `argv` there after it has said `word`, on a line of its own, on both streams. Raises ValueError for what no
    program can get: no word at all, a null character, more than MAX_LINE bytes."""
    if not argv or any("\0" in one for one in argv):
        raise ValueError(f"no argv that can be run there: {list(argv)!r}")
    script = f"printf '\\n{word}\\n'; printf '\\n{word}\\n' >&2; exec {shlex.join(argv)}"
    coded = "".join(chr(byte) if byte in PLAIN else f"\\0{byte:03o}" for byte in script.encode(errors="surrogateescape"))
    if len(coded) > MAX_LINE:
        raise ValueError(f"{argv[0]}: its arguments have {len(coded)} bytes, and at most {MAX_LINE} can travel on one line")
    return f"""exec /bin/sh -c 'eval "$(printf %b "$1")"' slipway '{coded}'"""


class After:
    """What comes on a stream after the boundary `word`; what came before is kept as `noise`, at most MOST bytes."""

    MOST: Final = 1 << 16

    def __init__(self, word: str) -> None:
        self.seen = False
        self.noise = b""
        self._mark = f"\n{word}\n".encode()

    def take(self, data: bytes) -> bytes:
        """The part of `data` that is of the program."""
        if self.seen:
            return data
        before, mark, after = (self.noise + data).partition(self._mark)
        if mark:
            self.seen, self.noise = True, before
            return after
        self.noise = before[-self.MOST :]
        return b""
