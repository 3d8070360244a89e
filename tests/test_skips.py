"""A test that is skipped for want of something is named, and fails a run that is told to be strict."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import ALLOWED

ROOT = Path(__file__).parents[1]
SKIPPED = """
import pytest
@pytest.mark.skipif(True, reason={reason!r})
def test_nothing() -> None:
    raise AssertionError
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strict", "reason", "code"), [("true", "strace is not installed", 1), ("true", ALLOWED[0], 0), ("", "strace is not installed", 0)]
)
def test_a_skip_for_want_of_something_is_named(tmp_path: Path, strict: str, reason: str, code: int) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED.format(reason=reason))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "STRICT_SKIPS": strict, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("tests/skips.py does not allow" in done.stdout) is (reason not in ALLOWED)
