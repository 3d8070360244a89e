"""pip with a word every few seconds: what it does as it goes, what it said when it fails."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final, TextIO

EVERY_S: Final = 5.0


class Shown:
    """One line that is written over on a terminal; elsewhere one every few seconds."""

    def __init__(self, stream: TextIO, every_s: float) -> None:
        self._stream, self._every_s = stream, every_s
        self._started, self._last = time.monotonic(), time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Show the text, unless the last one was shown just now."""
        terminal = self._stream.isatty()
        if time.monotonic() - self._last < (0.2 if terminal else self._every_s):
            return
        self._last = time.monotonic()
        line = f"  {text} ({self.seconds:.0f} s)"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\033[K{line[:width]}" if terminal else f"{line}\n")
        self._stream.flush()

    def end(self, text: str) -> None:
        """Show the text as the last one, whatever the time."""
        self._stream.write(f"{chr(13)}{chr(27)}[K{text}\n" if self._stream.isatty() else f"{text}\n")
        self._stream.flush()


def doing(line: str, before: str) -> str:
    """Return what pip does now, by a line of its output; `before`: what it did."""
    words = line.strip()
    if progress := re.fullmatch(r"Progress (\d+) of (\d+)", words):
        done, total = map(int, progress.groups())
        return f"{before.partition(', ')[0]}, {100 * done // max(total, 1)} %"
    if words.startswith("Installing collected packages:"):
        count = len(words.split(","))
        return f"installing {count} {'package' if count == 1 else 'packages'}"
    known = {
        "Collecting": "looking for",
        "Downloading": "downloading",
        "Using cached": "taking from pip's cache",
        "Processing": "unpacking",
        "Building": "building",
    }
    for begin, said in known.items():
        if words.startswith(begin):
            return said + words.removeprefix(begin).removesuffix("metadata")
    return before


def pip(words: Sequence[str], what: str, stream: TextIO = sys.stderr, every_s: float = EVERY_S) -> int:
    """Run `pip install WORDS`, show its progress, and its output when it fails. Return its exit code."""
    version = _pip_version()
    if version is None:
        say(f"{what}: {sys.executable} has no pip; `{sys.executable} -m ensurepip` gives it one")
        return 1
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *words]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", **({"PIP_PROGRESS_BAR": "raw"} if version >= (24, 1) else {})}
    return told(argv, environ, what, stream, every_s)


def told(argv: Sequence[str], environ: Mapping[str, str], what: str, stream: TextIO = sys.stderr, every_s: float = EVERY_S) -> int:
    """Run the command, and show `what` until a line of its output says more. Return its exit code."""
    shown, now, said, rest = Shown(stream, every_s), what, deque[str](maxlen=40), b""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ) as child:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        while True:
            if select.select([descriptor], [], [], 1.0)[0]:
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in (one.decode(errors="replace") for one in lines):
                    now = doing(line, now)
                    said.append(line)
            shown.say(now)
    if child.returncode:
        shown.end("\n".join([*said, f"failed with exit code {child.returncode}: {what}"]))
    else:
        shown.end(f"  done in {shown.seconds:.0f} s")
    return child.returncode


def _pip_version() -> tuple[int, ...] | None:
    """Return None where this Python has no pip, as in an environment of uv's."""
    try:
        return tuple(int(part) for part in metadata.version("pip").split(".")[:2])
    except metadata.PackageNotFoundError:
        return None


def say(text: str) -> None:
    """Print a line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
