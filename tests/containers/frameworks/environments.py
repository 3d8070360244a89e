"""The interpreters of frameworks, where they are installed."""

from __future__ import annotations

import sys

import pytest

from containers.frameworks import load_framework
from containers.frameworks.environment import environment_of, own_python, what_is_missing


def interpreter(name: str, strategy: str = "ddp", backend: str = "auto") -> str:
    """That of the framework; skips where it is not installed."""
    spec = load_framework(name)
    if what_is_missing(spec, strategy, backend) is not None:
        name, _ = environment_of(spec, strategy, backend) or (name, None)
        pytest.skip(f"framework {name} is not installed here: make framework NAME={name}")
    return own_python(spec, strategy, backend) or sys.executable
