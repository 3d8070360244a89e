"""The interpreters of frameworks, where they are installed."""

from __future__ import annotations

import sys

import pytest

from containers.frameworks import load_framework
from containers.frameworks.environment import environment_of, own_python, what_is_missing


def interpreter(name: str, strategy: str = "ddp", backend: str = "auto") -> str:
    """That of the framework; skips where it is not installed."""
    if (reason := why_not(name, strategy, backend)) is not None:
        pytest.skip(reason)
    return own_python(load_framework(name), strategy, backend) or sys.executable


def why_not(name: str, strategy: str = "ddp", backend: str = "auto") -> str | None:
    """The reason to skip what needs it; None: it is installed."""
    spec = load_framework(name)
    if what_is_missing(spec, strategy, backend) is None:
        return None
    name, _ = environment_of(spec, strategy, backend) or (name, None)
    return f"framework {name} is not installed here: make framework NAME={name}"
