"""The studies of examples/, run as a user runs them, on two nodes of this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from base.rooms import ROOMS
from tests.containers.frameworks.environments import interpreter
from workflow.report.collect import read_records
from workflow.study.study import load_study

pytestmark = pytest.mark.slow
EXAMPLES = sorted((ROOMS / "examples").glob("*/study.yaml"))
NEEDED = {"huggingface": "transformers", "lightning": "lightning"}
"""What an example asks for beside torch."""
COVERED = {"frameworks", "gpt-fsdp2", "huggingface", "language", "lightning"}
"""CI leaves these out: it trains their frameworks and networks in tests of their own, and calls their call-backs."""
SITE = "storage: storage\ncache: {path: cache}\nscheduler: local\nengine: bare\ndevice: cpu\n"


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(
    "study",
    [pytest.param(path, marks=[pytest.mark.long] * (path.parent.name in COVERED), id=path.parent.name) for path in EXAMPLES],
)
def test_an_example_gives_its_table(study: Path, tmp_path: Path) -> None:
    package = NEEDED.get(study.parent.name)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: requirements-dev.txt has it")
    site = tmp_path / "site.yaml"
    site.write_text(SITE)
    chosen = load_study(study, str(site), {})
    for name in {cell.framework for cell in chosen.cells if cell.program is None}:
        interpreter(name)
    done = slipway("run", study, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes" in done.stdout
    (results,) = (tmp_path / "storage" / "results").iterdir()
    rows = read_records(results / "records.parquet").frame.to_dicts()
    assert [row["status"] for row in rows] == ["ok"] * len(chosen.runs)
    assert {row["nodes"] for row in rows} == {1, 2}
    assert {row["num_measured_steps"] for row in rows} == {100}
    if len({cell.framework for cell in chosen.cells}) > 1:
        checked = slipway("check-frameworks", study, tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stdout.count("the same") == len(chosen.cells) - 2


def slipway(command: str, study: Path, place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it there, with the site that lies there."""
    argv = [sys.executable, "-m", "workflow.commands.main", command, str(study), "--site", str(place / "site.yaml"), *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOMS)}
    return subprocess.run(argv, cwd=place, env=environ, capture_output=True, text=True, check=False, timeout=300)
