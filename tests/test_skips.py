"""A test that is skipped for want of something is named, and fails a run that is told to be strict."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.skips import ALLOWED, Skips

ROOT = Path(__file__).parents[1]
SKIPPED = """
import pytest
@pytest.mark.parametrize("reason", {reasons!r})
def test_nothing(reason: str) -> None:
    pytest.skip(reason)
"""
STRANGE = "strace is not installed"


@pytest.mark.slow
def test_a_skip_for_want_of_something_is_named_and_fails_a_strict_run(tmp_path: Path) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED.format(reasons=[ALLOWED[0], STRANGE]))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "no:cacheprovider", str(tmp_path)]
    environ = {**os.environ, "STRICT_SKIPS": "true", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    named = [line for line in done.stdout.splitlines() if "tests/skips.py does not allow" in line]
    assert [line.rpartition(": ")[2] for line in named] == [STRANGE]


@pytest.mark.parametrize(("strict", "reason", "fails"), [(True, STRANGE, True), (True, ALLOWED[0], False), (False, STRANGE, False)])
def test_who_is_not_strict_and_who_has_a_reason_does_not_fail(strict: bool, reason: str, fails: bool) -> None:
    skips = Skips(strict)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    skips.look("test", f"Skipped: {reason}")
    skips.pytest_sessionfinish(session)
    assert (session.exitstatus == pytest.ExitCode.TESTS_FAILED) == fails
