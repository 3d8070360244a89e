"""Show the output of a command on the cluster line by line, made safe for a terminal, with its commands as one types them here."""

from __future__ import annotations

import re
import shlex
import sys
from typing import IO, Final

from base.logs import printable

PROPOSED: Final = re.compile(r"\bslipway (?=(plan|submit|status|logs|tables|report|verify)\b)")
SESSIONS: Final = re.compile(r"\bslipway (?=session (ls|stop)\b)")
LONGEST: Final = 1 << 16


class Relay:
    """The output of one command there. `there`: the study file on the cluster, which is `here` on the laptop; None: there is none."""

    def __init__(self, *, host: str, there: str | None, here: str) -> None:
        self._host, self._there, self._here = host, there, here
        self._rest: dict[bool, bytes] = {True: b"", False: b""}
        self.has_shown = False

    def out(self, data: bytes) -> None:
        self._take(data, is_out=True)

    def err(self, data: bytes) -> None:
        self._take(data, is_out=False)

    def end(self) -> None:
        """Show a last line that came without its end."""
        for is_out, rest in self._rest.items():
            if rest:
                self._show(rest, is_out)
            self._rest[is_out] = b""

    def as_typed_here(self, line: str) -> str:
        far = f"slipway remote {shlex.quote(self._host)} "
        line = SESSIONS.sub(lambda _: far, line)
        if self._there is None or self._there not in line:
            return printable(line)
        proposed, commands = PROPOSED.subn(lambda _: far, line)
        here = shlex.quote(self._here) if commands else self._here
        return printable(proposed.replace(shlex.quote(self._there), here).replace(self._there, here))

    def _take(self, data: bytes, *, is_out: bool) -> None:
        *lines, rest = (self._rest[is_out] + data).split(b"\n")
        for line in lines:
            self._show(line, is_out)
        self._rest[is_out] = rest if len(rest) < LONGEST else b""
        if len(rest) >= LONGEST:
            self._show(rest, is_out)

    def _show(self, line: bytes, is_out: bool) -> None:
        self.has_shown = True
        stream: IO[str] = sys.stdout if is_out else sys.stderr
        stream.write(self.as_typed_here(line.decode(errors="replace")) + "\n")
        stream.flush()
