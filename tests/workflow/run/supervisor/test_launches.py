"""Launches that the scheduler refuses for now: node programs are started again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.schedulers.slurm import launches
from cluster.types import Allocation, Node
from tests.workflow.run.link.test_protocol import House
from workflow.run.supervisor.step_limits import AttemptLimits

pytestmark = pytest.mark.processes
NODE = Node(name="n1", hostname="n1", address="127.0.0.1")
ALLOCATION = Allocation(scheduler="slurm", job_id="5", nodes=(NODE,), device="cpu", exclusive=True)
SRUN = """#!/bin/sh
echo x >> {place}/started
test $(wc -l < {place}/started) -gt {times} && exec "$0.works"
echo 'srun: error: {words}' >&2
exit 1
"""
TAKEN = "Unable to create step for job 5: Memory required by task is not available"
AWAY = "Unable to contact slurm controller (connect failure)"


def srun(place: Path, words: str, times: int) -> dict[str, str]:
    """One that fails so many times, then starts a node program; the environment that has it."""
    works = f"#!/bin/sh\nread token\ntouch {place}/works\nread more\n"
    for name, text in (("srun", SRUN.format(place=place, words=words, times=times)), ("srun.works", works)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}


@pytest.fixture
def door() -> Iterator[House]:
    door = House(1, AttemptLimits(launch_pause_s=0.01))
    yield door
    for connection in door.open:
        connection.close()
    assert door.nodes.wait_for_end(10)
    door.close()


@pytest.mark.parametrize(
    ("words", "meaning"),
    [(TAKEN, "the scheduler takes for living what has ended on these nodes"), (AWAY, "the scheduler does not answer")],
)
def test_a_launch_that_is_refused_for_now_is_tried_again(
    door: House, tmp_path: Path, caplog: pytest.LogCaptureFixture, words: str, meaning: str
) -> None:
    door.nodes.launch(launches(ALLOCATION, ("node",)), srun(tmp_path, words, 2))
    assert door.loop.until(lambda: (tmp_path / "works").exists(), 60)
    door.come_in()
    said = f"{meaning} (srun: error: {words}); node programs are started again in 0.01 s"
    assert [record.message for record in caplog.records] == [said] * 2
    assert door.lost == []
    assert (tmp_path / "started").read_text() == "x\n" * 3


def test_a_launch_that_is_refused_for_good_loses_its_nodes(door: House, tmp_path: Path) -> None:
    words = "Unable to create step for job 5: Requested node configuration is not available"
    door.nodes.launch(launches(ALLOCATION, ("node",)), srun(tmp_path, words, 1))
    assert door.loop.until(lambda: bool(door.lost), 60)
    assert door.lost == [(0, f"its program ended with 1: srun: error: {words}")]
    assert (tmp_path / "started").read_text() == "x\n"
