"""What the stand-ins for Slurm's commands say where they cannot write."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from cluster.schedulers.slurm.patient import STATE
from cluster.schedulers.slurm.patient import __main__ as patient
from tests.nobody import as_nobody


def _said() -> list[object]:
    """Exit code and words of the stand-in."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = patient.main(["scontrol", "show", "config"])
    return [code, out.getvalue()]


@pytest.mark.processes
def test_where_nothing_can_be_written_no_configuration_is_kept_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a full quota; here the directory may be read only."""
    scontrol, state = tmp_path / "scontrol", tmp_path / "state"
    scontrol.write_text("#!/bin/sh\necho 'MinJobAge               = 400 sec'\n")
    scontrol.chmod(0o755)
    state.mkdir(0o555)
    monkeypatch.setenv(STATE, state.name)
    monkeypatch.setenv("PATH", ".:/usr/bin:/bin")
    assert as_nobody(tmp_path, _said) == [0, "MinJobAge               = 400 sec\n"], "asked for, and not kept"
    state.chmod(0o755)
    (state / patient.COPY).write_text("MinJobAge               = 500 sec\n")
    state.chmod(0o555)
    assert as_nobody(tmp_path, _said) == [0, "MinJobAge               = 500 sec\n"], "kept from before"
    assert [path.name for path in state.iterdir()] == [patient.COPY]
