"""What the mini-cluster refuses before it makes anything: schedulers that are built from source and are not where a variable says."""

from pathlib import Path

import pytest

from tests.minicluster.packages import BUILT, check_built
from tests.minicluster.spec import ClusterError


@pytest.mark.parametrize("scheduler", BUILT)
def test_a_scheduler_that_is_not_here_is_named_with_what_builds_it(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_TEST_RUNTIMES", str(tmp_path))
    monkeypatch.delenv(BUILT[scheduler][2], raising=False)
    with pytest.raises(ClusterError, match="is not here, and no package registry has it: tests/runtimes/build-"):
        check_built(scheduler)


@pytest.mark.parametrize("scheduler", BUILT)
@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("/nowhere", "where .* is no program; valid: the absolute path"),
        ("/tmp/built", "valid: .* outside of /tmp, .* which each host has for itself"),
        ("built", "valid: the absolute path"),
    ],
)
def test_a_wrong_place_is_named_with_its_variable(scheduler: str, place: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUILT[scheduler][2], place)
    with pytest.raises(ClusterError, match=f"{BUILT[scheduler][2]}: found '{place}'.*{problem}"):
        check_built(scheduler)
