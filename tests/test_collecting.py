"""No test is left out of all runs, and a pure one starts no process."""

import fnmatch
import itertools
import os
import re
from pathlib import Path

import pytest

from tests.conftest import Watched

ROOT = Path(__file__).parents[1]


def test_no_directory_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    directories = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert "build" in directories
    patterns = pytestconfig.getini("norecursedirs")
    assert [name for name in directories if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []


def test_each_test_is_run_by_one_target_of_make() -> None:
    targets = dict(
        re.findall(
            r'^(\w+): \.venv/\.(?:test|dev|slow) .*\n\t.*pytest (?:--ignore=tests/historic )?-m "?([a-z ]+)',
            (ROOT / "Makefile").read_text(),
            re.MULTILINE,
        )
    )
    assert set(targets) == {"test", "processes", "slow", "long"}
    for slow, long, processes in itertools.product((True, False), repeat=3):
        if slow or not long:  # what is long is slow
            marks = {"slow": slow, "long": long, "processes": processes}
            runs = [name for name, selected in targets.items() if eval(selected, {}, marks)]
            assert len(runs) == 1, f"{marks}: {runs}"


def test_a_pure_test_that_starts_a_process_fails() -> None:
    with pytest.raises(RuntimeError, match=r"a test that starts processes carries @pytest.mark.processes: os.fork\(\)"):
        os.fork()
    with pytest.raises(RuntimeError, match="os.posix_spawn"):
        os.posix_spawn("/bin/true", ["true"], {})
    assert len(Watched.tried) == 2
    Watched.tried.clear()  # else this one fails
