"""Whose directory is in the way of a path."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from base.calls import call_limited
from base.system import inaccessible_parent
from tests.base.test_account import NUMBER, needs_root


def _asked_by_another(path: str) -> str | None:
    os.setuid(NUMBER)
    return inaccessible_parent(path)


@pytest.mark.processes
@needs_root
def test_the_directory_that_is_not_ours_is_named_with_its_owner() -> None:
    with tempfile.TemporaryDirectory() as name:  # others come to none of pytest's
        place = Path(name)
        place.chmod(0o755)
        results = place / "results"
        results.mkdir(mode=0o700)
        study = str(results / "photos" / "study.json")
        found = call_limited("as another user", _asked_by_another, study, timeout_s=60)
        assert found == f"{results} belongs to root and has mode 0700"
        assert call_limited("as another user", _asked_by_another, str(place / "other" / "file"), timeout_s=60) is None


def test_nothing_is_in_our_own_way(tmp_path: Path) -> None:
    assert inaccessible_parent(str(tmp_path / "file")) is None
