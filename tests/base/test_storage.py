from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from base.system import now_at


def test_it_is_the_clock_of_the_file_system_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "before").touch()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    found = now_at(tmp_path)
    monkeypatch.undo()
    (tmp_path / "after").touch()
    assert (tmp_path / "before").stat().st_mtime <= found <= (tmp_path / "after").stat().st_mtime
    assert sorted(os.listdir(tmp_path)) == ["after", "before"]
