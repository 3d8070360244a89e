"""What Snakemake's slurm plugin makes of a job, and what it cannot take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from base.rooms import ROOMS

pytestmark = pytest.mark.processes

PROGRAM = """
from base.errors import SchedulerOutputError
from cluster.schedulers.jobs import JobSize, RunJob
from cluster.schedulers.slurm.plugin import run_words
try:
    print(run_words(RunJob(run_id="a-r1", size=JobSize(nodes=2, minutes=5, queue="main"), directory="/nfs/a")))
except SchedulerOutputError as error:
    print("refused:", error)
"""


def test_an_answer_of_scontrol_that_is_no_text_is_an_error_of_ours(tmp_path: Path) -> None:
    """In a program of its own: the plugin asks when it is imported."""
    (tmp_path / "scontrol").write_bytes(b"#!/bin/sh\nprintf 'ClusterName = \\377\\376'\n")
    (tmp_path / "scontrol").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOMS), "LC_ALL": "C.UTF-8"}
    said = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("refused: Snakemake's slurm plugin cannot take what `scontrol show config` answers: 'utf-8' codec")
