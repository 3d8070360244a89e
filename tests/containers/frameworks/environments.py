"""The interpreters of frameworks, where they are installed."""

from __future__ import annotations

import sys

import pytest

from containers.frameworks import load_framework
from containers.frameworks.environment import own_python, what_is_missing


def interpreter(name: str, strategy: str = "ddp") -> str:
    """That of the framework; skips where it is not installed."""
    spec = load_framework(name)
    if what_is_missing(spec, strategy) is not None:
        name = name if strategy == "ddp" else f"{name}-{strategy}"
        pytest.skip(f"framework {name} is not installed here: make framework NAME={name}")
    return own_python(spec, strategy) or sys.executable
