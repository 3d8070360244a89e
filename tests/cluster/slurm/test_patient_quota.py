"""What the stand-ins for Slurm's commands say where they cannot write."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.schedulers.slurm.patient import STATE
from cluster.schedulers.slurm.patient import __main__ as patient


def _full(*_: object) -> NoReturn:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def test_a_full_quota_keeps_no_configuration_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STATE, str(tmp_path))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(patient, "ask", lambda *_: "MinJobAge               = 400 sec\n")
    monkeypatch.setattr(patient, "now_at", _full)
    monkeypatch.setattr(patient, "publish", _full)
    assert patient.main(["scontrol", "show", "config"]) == 0
    assert capsys.readouterr().out == "MinJobAge               = 400 sec\n", "asked for, and not kept"
    (tmp_path / patient.COPY).write_text("MinJobAge               = 500 sec\n")
    assert patient.main(["scontrol", "show", "config"]) == 0
    assert capsys.readouterr().out == "MinJobAge               = 500 sec\n"
