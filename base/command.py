"""Run another program: an argv in, a result out, always with a time limit."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from base.errors import SlipwayError

LAST_LINES = 20


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a finished command left: `returncode` is negative for a signal, as in subprocess."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
) -> CommandResult:
    """Run `argv` to its end. Raises SlipwayError when it cannot be started or does not end within `timeout_s` (it is killed then)."""
    try:
        done = subprocess.run(
            list(argv), input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env, cwd=cwd, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SlipwayError(f"{shlex.join(argv)} did not end within {timeout_s:g} s and was killed") from error
    except OSError as error:
        raise SlipwayError(f"{shlex.join(argv)} cannot be started: {error.strerror or error}") from error
    return CommandResult(argv=tuple(argv), returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def describe(result: CommandResult) -> str:
    """One paragraph for an error message: argv, exit code, the last lines of stderr."""
    return f"{shlex.join(result.argv)} ended with {result.returncode}\n{last_lines(result.stderr)}".rstrip()


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """The last `count` lines that are not blank."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])
