"""Tests that compute on a GPU of this machine; elsewhere they are skipped. CI has none: `pytest -m slow -k gpu` where there is one."""

import subprocess
from collections.abc import Collection
from shutil import which
from typing import Any

import pytest

from cluster.gpus.listing import PROCESSES_QUERY, App, parse_apps

NEEDS_GPU = pytest.mark.skipif(which("nvidia-smi") is None, reason="there is no GPU here (nvidia-smi is not on PATH)")
CUDA: dict[str, Any] = {"device": "cuda", "threads": 4}


def apps() -> tuple[App, ...]:
    """The programs that hold memory of a GPU now."""
    return parse_apps(subprocess.run(PROCESSES_QUERY, check=True, capture_output=True, text=True).stdout)


def still_there(pids: Collection[int]) -> list[App]:
    """Those of these processes that still hold memory of a GPU."""
    return [app for app in apps() if app.pid in pids]
