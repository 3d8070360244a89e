"""Storage that stops answering while a run is at work, here an ext4 that is frozen: whoever writes to it waits uninterruptibly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.base.test_frozen import still_frozen
from tests.data_prep.staging.disks import Disk, ext4
from tests.workflow.run.world import World
from workflow.run.node.workdir import deliver

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4(tmp_path, name="storage") as disk:
        yield disk


@pytest.fixture
def frozen_world(disk: Disk, tmp_path: Path) -> Iterator[World]:
    """A world whose storage is `disk`."""
    world = World(tmp_path)
    assert world.storage == disk.place
    yield world
    world.close()


def test_frozen_at_the_push_the_result_waits_on_its_node_and_can_be_delivered(frozen_world: World, disk: Disk) -> None:
    world = frozen_world
    world.shorter["push_s"] = 3.0
    run_id = world.held(2)
    process = world.in_training(run_id)
    with still_frozen(disk, 120):
        world.go_on()
        code = process.wait(100)
        assert code == 22
        assert len(list(world.cache.glob("local-*/runs/*/pending.json"))) == 2
        assert world.pids("workflow.run.node") == []
    assert process.stderr is not None
    log = process.stderr.read()
    assert "the storage behind it hangs, or is very slow" in log
    assert "its result waits on local-0, local-1" in log
    for cache in world.cache.glob("local-*"):
        assert [delivery.delivered for delivery in deliver(cache, world.storage)] == [True]
    assert world.record(run_id)["status"] == "ok"
    world.wait_for(lambda: world.left() == [])
