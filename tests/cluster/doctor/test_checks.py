"""Which scheduler is here, by its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.doctor.checks import find_scheduler


def test_of_several_that_are_installed_the_sites_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_scheduler("sge") == "local"
    for name in ("sbatch", "srun", "scontrol", "qsub", "qconf"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert (find_scheduler(), find_scheduler("sge"), find_scheduler("pbs")) == ("slurm", "sge", "slurm")
