"""Run pip: one line says what it installs, and one how long it took. Of its own words only warnings and errors are shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

_PIN: Final = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)


def pip(words: Sequence[str], what: str = "", *, large: bool = False) -> int:
    """Run `pip install WORDS` for `what`, which is named if it is given. Return pip's exit code. `large`: pip shows how far it is."""
    if not version_of("pip"):  # as in an environment of uv's
        say(f"{sys.executable} has no pip; `{sys.executable} -m ensurepip` gives it one")
        return 1
    total = num_pins(words)
    if what:
        say(f"installing {what} into {_shown(sys.prefix)}{f': {total} packages' if total else ''}")
    started = time.monotonic()
    argv = [sys.executable, "-m", "pip", *([] if large else ["--quiet"]), "--disable-pip-version-check", "install", *words]
    code = subprocess.run(argv, stdout=2, check=False).returncode
    if code:
        say(f"pip has failed with exit code {code}")
    elif what:
        say(f"  installed in {time.monotonic() - started:.0f} s")
    return code


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
