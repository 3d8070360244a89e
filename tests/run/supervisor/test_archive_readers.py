"""Who reads the archive of an image from storage, and how fast: no more nodes at once than the site allows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from base.errors import ContainerError
from cluster.types import Node
from containers.images.archiving import archive
from containers.images.loading import load
from containers.images.pinning import pin
from containers.images.turns import InTurn
from workflow.run.link import said
from workflow.run.link.orders import ReadImage
from workflow.run.supervisor.archive_readers import MOST_READERS, ArchiveReaders
from workflow.run.supervisor.nodes import NodeHandle

WANTED, READ, LOADING = said.ImageWanted(bytes=9), said.ImageRead(bytes=9), said.Loading(seconds=1)
FAILED = said.Failed(during="stage", error="StagingError", message="it broke")


class Group:
    """Nodes that say things, and what they were told."""

    def __init__(self, count: int, readers: int | None = None, bytes_per_s: float | None = None) -> None:
        self.nodes = [
            NodeHandle(index, Node(name=f"n{index}", hostname=f"n{index}", address="127.0.0.1", gpus=())) for index in range(count)
        ]
        self.told: dict[int, Any] = {}
        self.turns = ArchiveReaders(self.nodes, self._send, readers, bytes_per_s)

    def _send(self, node: NodeHandle, order: ReadImage) -> None:
        assert node.index not in self.told, "once"
        self.told[node.index] = order.bytes_per_s

    def say(self, message: said.Said, *nodes: int) -> list[int]:
        for index in nodes:
            self.nodes[index].note(message)
        self.turns.give()
        return sorted(self.told)


def test_no_more_read_at_once_than_the_site_allows() -> None:
    group = Group(64, readers=2)
    assert group.say(WANTED, 5) == [5]
    assert group.say(WANTED, *range(64)) == [0, 5]
    assert group.say(READ, 5) == [0, 1, 5]
    assert group.say(FAILED, 0) == [0, 1, 2, 5]
    group.nodes[1].lost = True
    assert group.say(LOADING, 2) == [0, 1, 2, 3, 5], "a node that is lost reads no more"
    for index in range(64):
        assert len(group.say(READ, index)) <= 64
    assert sorted(group.told) == list(range(64))


def test_who_waits_for_its_turn_makes_no_progress() -> None:
    group = Group(2, readers=1)
    group.say(WANTED, 0, 1)
    assert [group.turns.waits(node) for node in group.nodes] == [False, True]
    group.say(READ, 0)
    assert [group.turns.waits(node) for node in group.nodes] == [False, False]


def test_without_a_limit_of_the_site_there_is_one() -> None:
    assert len(Group(64).say(WANTED, *range(64))) == MOST_READERS
    assert Group(2, readers=1, bytes_per_s=None).turns is not None


def test_all_together_keep_the_rate_which_the_dataset_has_first() -> None:
    group = Group(4, readers=2, bytes_per_s=100.0)
    group.say(said.DatasetIsHere(), 0, 1)
    assert group.say(WANTED, 0, 1) == []
    group.say(FAILED, 2)
    group.nodes[3].lost = True
    assert group.say(LOADING, 0) == [0, 1]
    assert group.told == {0: 50.0, 1: 50.0}
    alone = Group(1, bytes_per_s=100.0)
    alone.say(said.DatasetIsHere(), 0)
    alone.say(WANTED, 0)
    assert alone.told == {0: 100.0}


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    (tmp_path / "image.sif").write_bytes(b"squashfs" * 1000)
    return archive(pin(str(tmp_path / "image.sif"), "apptainer"), tmp_path / "storage")


def test_a_load_asks_before_it_reads_and_says_when_it_is_through(tmp_path: Path, archived: Path) -> None:
    said = io.StringIO()
    load(archived, "apptainer", tmp_path / "cache", reading=InTurn(io.StringIO('{"bytes_per_s": 1e6}\n'), said, 0.0))
    assert [json.loads(line) for line in said.getvalue().splitlines()] == [{"wants": 8000}, {"progress": [8000, 8000]}, {"read": 8000}]
    said.truncate(0)
    load(archived, "apptainer", tmp_path / "cache", reading=InTurn(io.StringIO(), said))
    assert said.getvalue() == "", "it is here: no turn is needed"


def test_a_load_whose_node_program_goes_while_it_waits_reads_nothing(tmp_path: Path, archived: Path) -> None:
    with pytest.raises(ContainerError, match="has gone"):
        load(archived, "apptainer", tmp_path / "cache", reading=InTurn(io.StringIO(), io.StringIO()))
    assert sorted(path.suffix for path in (tmp_path / "cache" / "images").iterdir()) == [".lock"]


def test_the_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    reading = InTurn(io.StringIO('{"bytes_per_s": 10}\n'), io.StringIO())
    reading.begin(100)
    for _ in range(2):
        reading.moved(1000)
    assert 99 < slept[0] <= 100
    assert 199 < slept[1] <= 200
