"""A user whom permissions hold back, also where the tests are run by root."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from base.calls import call_limited

NOBODY: Final = 65534


def as_nobody(directory: Path, function: Callable[[], Any]) -> Any:
    """What `function` returns, a JSON value, called in `directory`, which is that user's; in a child, as root becomes the user for good."""
    return call_limited(f"as nobody in {directory}", _call, directory, function, timeout_s=60)


def _call(directory: Path, function: Callable[[], Any]) -> Any:
    os.chdir(directory)
    if os.geteuid() == 0:
        os.chown(".", NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return function()
