"""A machine's clock that is set while runs are at work, by days, forwards and back: libfaketime gives supervisors and node programs the
time. Ranks do not see its variables, and have the machine's own."""

from pathlib import Path

import pytest

from tests.workflow.run.test_runs import checked
from tests.workflow.run.world import HELD_STEPS, World

pytestmark = pytest.mark.slow
HOUR_S = 3600
JUMP_S = 54 * HOUR_S


class Wall:
    """The clock of all processes that start from now on."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        libraries = [str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")]
        if not libraries:
            pytest.skip("libfaketime is not here: apt-get install faketime")
        self._file = place / "clock"
        self.set(0)
        environ = {
            "LD_PRELOAD": libraries[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",  # files keep the time of their storage
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    def set(self, seconds: int) -> None:
        """From now on it differs by that."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{seconds:+d}\n")
        part.rename(self._file)


@pytest.fixture
def wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(tmp_path, monkeypatch)


@pytest.mark.parametrize("jumps", [(JUMP_S, -JUMP_S), (-JUMP_S, JUMP_S)], ids=["forwards and back", "back and forwards"])
def test_a_clock_that_is_set_ends_no_run_and_moves_no_number(world: World, wall: Wall, jumps: tuple[int, int]) -> None:
    run_id = world.cell(2, step_s=0.05, measured=HELD_STEPS + 40, hurry=str(world.path / "hurry"))
    process = world.start(run_id)
    for steps, seconds in zip((5, 40), jumps, strict=True):
        world.wait_for(lambda least=steps: world.steps(run_id) > least)
        wall.set(seconds)
    world.go_on()
    log = world.end_of(process)
    record = checked(world, run_id)
    assert (record["status"], record["performance"]["num_measured_steps"]) == ("ok", HELD_STEPS + 40)
    assert 0 < record["run_s"] < HOUR_S
    assert all(0 <= seconds <= record["run_s"] for name, seconds in record["steps_s"].items() if name not in ("login", "assign"))
    assert 40 * 0.05 <= record["performance"]["window_s"] < 600
    first, *_, last = (int(line[:2]) for line in log.splitlines() if line[2] == ":")
    assert (last - first) % 24 in ((jumps[1] // HOUR_S + late) % 24 for late in (0, 1)), "the clock was not set"
    assert not [warning for warning in record["warnings"] if "clock" in warning]
    assert world.left() == []


def test_a_dead_holder_is_followed_after_the_clock_was_set_back(world: World, wall: Wall) -> None:
    run_id = world.held()
    process = world.in_training(run_id)
    wall.set(-JUMP_S)
    process.kill()
    process.wait()
    world.go_on()
    world.ends(run_id)
    assert world.record(run_id)["attempt"] == 2
    world.wait_for(lambda: world.left() == [])
