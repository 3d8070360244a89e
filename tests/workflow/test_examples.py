"""The studies of examples/, run as a user runs them, on two nodes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from base.rooms import ROOMS
from workflow.report.collect import read_records

pytestmark = pytest.mark.slow
EXAMPLES = sorted((ROOMS / "examples").glob("*/study.yaml"))
SITE = "storage: storage\ncache: {path: cache}\nscheduler: local\nengine: bare\ndevice: cpu\n"


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("study", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_gives_its_table(study: Path, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    argv = [sys.executable, "-m", "workflow.commands.main", "run", str(study), "--site", str(site)]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOMS)}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes" in done.stdout
    (results,) = (tmp_path / "storage" / "results").iterdir()
    rows = read_records(results / "records.parquet").frame.to_dicts()
    assert [row["status"] for row in rows] == ["ok"] * 2
    assert {row["nodes"] for row in rows} == {1, 2}
    assert {row["num_measured_steps"] for row in rows} == {100}
