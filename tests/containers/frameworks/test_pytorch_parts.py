"""The parts of the PyTorch program that need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from containers.frameworks import load_framework

FOLDER = load_framework("pytorch").folder

STAND_IN = """
import importlib, sys
sys.path[:0] = sys.argv[1:]
compiler = importlib.import_module("slipway_pytorch.compiler")
compiler.NAME = "pretend"
compiler.leave_out()
import pretend
assert pretend.disable(len) is len and pretend.disable()(len) is len and pretend.graph_break() is None
assert pretend.utils.get_optimize_ddp_mode() == "ddp_optimizer" and pretend.trace_rules.clear_lru_cache() is None
assert not hasattr(pretend, "__file__")
assert "real" not in vars(pretend)
assert pretend.real == 7
import pretend as again
assert again is not pretend and again.real == 7
"""


@pytest.mark.processes
def test_the_compilers_stand_in_gives_way(tmp_path: Path) -> None:
    (tmp_path / "pretend.py").write_text("real = 7\n")
    (tmp_path / "slipway_pytorch").mkdir()
    (tmp_path / "slipway_pytorch" / "compiler.py").write_text((FOLDER / "slipway_pytorch" / "compiler.py").read_text())
    subprocess.run([sys.executable, "-c", STAND_IN, str(tmp_path)], check=True, timeout=60)
