from pathlib import Path

import pytest


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory where commands are looked for first."""
    place = tmp_path / "commands"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return place


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory where all commands are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path
