"""A few double starts; `python -m tests.workflow.double_starts` counts many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.double_starts import Place, snakemakes, supervisors
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("retry", [False, True])
def test_of_two_supervisors_at_once_one_trains(tmp_path: Path, retry: bool) -> None:
    world = World(tmp_path)
    try:
        assert supervisors(world, retry, delay_s=0) == []
    finally:
        world.close()


@pytest.mark.long
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("retry", [False, True])
def test_of_two_snakemakes_at_once_each_run_is_trained_by_one(tmp_path: Path, two: bool, retry: bool) -> None:
    place = Place(tmp_path, retry)
    assert snakemakes(place, two, retry, delay_s=0) == [], (tmp_path / "output").read_text()
