"""No time decides a test. The slow tests are in two rows that may run side by side: real clusters of their own, and this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")
CLUSTER = Path(__file__).parent / "slurm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`. On this machine one measuring run waits for the other; the nodes of a cluster have locks of their own."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("cluster" if CLUSTER in item.path.parents else "machine"))
