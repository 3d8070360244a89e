"""Run pip: one line says what it installs, one moving line how far it is, and its own words are shown only where it fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

LOG: Final = "pip.log"
"""The file in the environment that has all that pip said, where it failed."""
SHOWN_LINES: Final = 20
_PACKAGE: Final = re.compile(
    r"^(?:Collecting|Processing|Requirement already satisfied:) (?:\S*/)?(?P<name>[A-Za-z0-9._]+(?:-[A-Za-z][A-Za-z0-9._]*)*)"
)
_DOWNLOAD: Final = re.compile(r"^\s+Downloading (?:\S*/)?(?P<file>\S+) \((?P<size>[^)]+)\)")
_PIN: Final = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)


def pip(words: Sequence[str], what: str = "") -> int:
    """Run `pip install WORDS` for `what`, which is named if it is given. Return pip's exit code."""
    if not version_of("pip"):  # as in an environment of uv's
        say(f"{sys.executable} has no pip; `{sys.executable} -m ensurepip` gives it one")
        return 1
    total = num_pins(words)
    if what:
        say(f"installing {what} into {_shown(sys.prefix)}{f': {total} packages' if total else ''}")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *words]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_PROGRESS_BAR": "off"}
    started = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True, errors="replace") as child:
        assert child.stdout is not None
        lines = _follow(child.stdout, total)
    if child.returncode:
        sys.stderr.writelines(lines[-SHOWN_LINES:])
        say(f"pip has failed with exit code {child.returncode}; all that it said: {_keep(lines)}")
    elif what:
        say(f"  installed in {time.monotonic() - started:.0f} s")
    return child.returncode


def _keep(lines: Sequence[str]) -> str:
    log = Path(sys.prefix, LOG)
    try:
        log.write_text("".join(lines))
    except OSError as error:  # as on the full disk that pip has failed for
        return f"not kept, {log}: {error.strerror}"
    return _shown(str(log))


def _follow(output: Iterable[str], total: int) -> list[str]:
    """Return the lines of pip, and draw on a terminal how far it is."""
    lines: list[str] = []
    names: set[str] = set()
    draws = sys.stderr.isatty()
    for line in output:
        lines.append(line)
        if draws and (text := progress(line, names, total)):
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\033[K{text[:width]}")
            sys.stderr.flush()
    if draws:
        sys.stderr.write("\r\033[K")
    return lines


def progress(line: str, names: set[str], total: int) -> str:
    """Describe how far pip is when it prints `line`, "" where that tells nothing. `names`: the packages so far, to which its own goes."""
    if found := _PACKAGE.match(line):
        names.add(found["name"].lower())
        count = f"{min(len(names), total)} of {total}" if total else str(len(names))
        return f"  looked up {count} packages: {found['name']}"
    if found := _DOWNLOAD.match(line):
        return f"  fetching {found['file']} ({found['size']})"
    return "  unpacking all of them" if line.startswith("Installing collected packages") else ""


def num_pins(words: Sequence[str]) -> int:
    """Count the packages in the files of requirements among pip's words."""
    files = [Path(word) for option, word in zip(words, words[1:], strict=False) if option == "-r"]
    return sum(len(_PIN.findall(file.read_text())) for file in files if file.is_file())


def version_of(package: str) -> str | None:
    """Return the version of an installed package, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def say(text: str) -> None:
    """Print a line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _shown(path: str) -> str:
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
