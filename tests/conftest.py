"""No time decides a test. The slow tests are in three rows that may run side by side, since they wait more than they work."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")

TESTS = Path(__file__).parent
ROWS = {"slurm": "cluster", "run": "runs", "workflow": "runs", "commands": "runs", "containers/test_runs.py": "runs"}
"""Real clusters have locks of their own; of the runs on this machine that measure, one waits for the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`."""
    for item in items:
        where = item.path.relative_to(TESTS)
        row = ROWS.get(where.parts[0]) or ROWS.get(where.as_posix(), "rest")
        item.add_marker(pytest.mark.xdist_group(row))
