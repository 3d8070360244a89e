"""slipway_historic_program/raw_files.py: what programs in other languages read, and that it becomes such a program."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from containers.models import build
from data_prep.push.copy import list_files
from tests.containers.frameworks.conftest import make_cell


@pytest.fixture
def raw_files(monkeypatch: pytest.MonkeyPatch, lib: Path) -> Any:
    monkeypatch.syspath_prepend(str(lib))
    return importlib.import_module("slipway_historic_program.raw_files")


def test_a_chain_of_layers_as_lines(raw_files: Any) -> None:
    lines = [" ".join(map(str, words)) for words in raw_files.layer_lines(list(build("lenet", 1, (32, 32), 10).layers))]
    assert lines == [
        "layer conv conv1 20 1 5 5 1 1 0 0",
        "layer pool pool1 max 2 2 2 2 0 0",
        "layer conv conv2 50 20 5 5 1 1 0 0",
        "layer pool pool2 max 2 2 2 2 0 0",
        "layer flatten flatten",
        "layer linear fc1 500 1250",
        "layer relu relu1",
        "layer linear fc2 10 500",
    ]


def test_a_network_that_is_no_chain_is_refused(raw_files: Any) -> None:
    with pytest.raises(ValueError, match=r"layer '.*' \(bn\) is no link of a chain of conv, pool, linear"):
        list(raw_files.layer_lines(list(build("resnet18", 3, (72, 72), 3).layers)))


@pytest.mark.processes
def test_the_program_finds_batches_weights_and_plan(datasets: Callable[[str], Path], lib: Path, tmp_path: Path) -> None:
    """One process has the batches of all: of two ranks here. The program of this test is a Python without our library."""
    root = datasets("digits")
    cell = make_cell(root, 2)
    (tmp_path / "cell.json").write_text(json.dumps(cell))
    places = {"SLIPWAY_CELL": tmp_path / "cell.json", "SLIPWAY_DATA": root, "SLIPWAY_OUT": tmp_path, "PYTHONPATH": lib}
    code = "import os; print(sum(1 for _ in open(os.environ['SLIPWAY_OUT'] + '/.raw-plan.part')))"
    argv = [sys.executable, "-m", "slipway_historic_program.raw_files"]
    environ = {**os.environ, **{name: str(value) for name, value in places.items()}}
    done = subprocess.run([*argv, sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=60)
    plan = (tmp_path / ".raw-plan.part").read_text()
    assert done.stdout == f"{len(plan.splitlines())}\n"
    assert plan.startswith(
        "steps 5\nbatch 32\ninput 1 32 32\nclasses 10\nseed 0\nlearning_rate 0.001\nmomentum 0.9\nweight_decay 0.0\nlayer conv"
    )
    images = np.fromfile(tmp_path / ".raw-images.part", "<f4").reshape(5, 32, 1, 32, 32)
    labels = np.fromfile(tmp_path / ".raw-labels.part", "<i4").reshape(5, 32)
    weights = np.fromfile(tmp_path / ".raw-weights.part", "<f4")
    assert abs(float(images.mean())) < 0.1
    assert set(labels.ravel()) == set(range(10))
    assert weights.size == cell["model_parameters"]
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert [entry.path for entry in list_files(descriptor, with_ours=True).files] == ["cell.json"], "none of these is pushed"
    finally:
        os.close(descriptor)
    done = subprocess.run([*argv, "/no/such/program"], env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(r"/no/such/program cannot be started: .*: the image must have it\n", done.stderr)
