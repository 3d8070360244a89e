"""No time decides a test. The slow tests are in three rows that may run side by side, since they wait more than they work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")

ROWS = {
    "slurm": "cluster",
    "slurm/test_images.py": "rest",
    "slurm/test_docker_nodes.py": "rest",
    "run": "runs",
    "workflow": "runs",
    "commands": "runs",
    "test_wheel.py": "runs",
    "containers/test_runs.py": "runs",
}
"""A file or a directory -> its row. Real clusters have locks of their own; of the runs on this machine that measure, one waits for the
other."""


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Our programs make theirs private: called here, they would do so to all tests that follow, whose files no container could read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


class Rows(LoadScopeScheduling):
    """`--dist loadscope`, where a scope is a row. (`loadgroup` of xdist 3.8 has no effect with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        where = PurePath(nodeid.split("::")[0]).relative_to("tests")
        return ROWS.get(where.as_posix()) or ROWS.get(where.parts[0], "rest")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """For `make slow`."""
    return Rows(config, log) if config.getvalue("dist") == "loadscope" else None
