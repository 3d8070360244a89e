"""The slow tests in two rows that may run side by side: what runs on real clusters of its own, and what wants this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

CLUSTER = Path(__file__).parent / "slurm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`. On this machine one measuring run waits for the other; the nodes of a cluster have locks of their own."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("cluster" if CLUSTER in item.path.parents else "machine"))
