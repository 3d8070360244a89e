"""What the ranks need, brought to one node, or to several: their preparations and the supervisor's staging in one process, with real
stagers."""

import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from cluster.types import Allocation, Node
from containers.images.archiving import archive
from containers.images.pinning import pin
from data_prep.cache.layout import open_cache
from data_prep.cache.lock import Lock
from data_prep.staging import StagedFiles, StageOptions, stage
from tests.data_prep.reader.small import random_dataset
from tests.workflow.run.link.test_messages import FRAMEWORK, PLAN, RANKS
from workflow.run.link import commands, reports
from workflow.run.link.event_loop import Loop
from workflow.run.node.child import Address, WorkLine
from workflow.run.node.preparation import Preparation
from workflow.run.supervisor.nodes import NodeHandle
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.staging import Staging

pytestmark = pytest.mark.slow
END_S = 30.0
NODES = 3
OTHER_RUN_S = 4.0
"""When another run on one of the nodes begins to stage: by then the nodes with the dataset could have begun with the image."""
CONTENT = random.Random(3).randbytes((9 << 20) + 5)


class Nodes:
    """In the place of the supervisor's: what is sent is obeyed at once, what is said is heard at once."""

    def __init__(self, tmp_path: Path) -> None:
        source = random_dataset(tmp_path / "storage" / "datasets", [100_000], chunk_bytes=65536)
        self.loop = Loop()
        self.staging = Staging(RunScope(self.loop), cast(Any, self))
        nodes = tuple(Node(name=f"n{index}", hostname="here", address="127.0.0.1") for index in range(NODES))
        allocation = Allocation(scheduler="local", job_id="1", nodes=nodes, device="cpu", exclusive=True)
        self.plan = structs.replace(PLAN, allocation=allocation, source=str(source), run_dir=str(tmp_path / "run"), ranks=None)
        self.all = [NodeHandle(index, node) for index, node in enumerate(nodes)]
        self.caches = [tmp_path / f"cache{index}" for index in range(NODES)]
        self.preparations: list[Preparation] = []
        self.kept_when_ended: list[list[str]] = []

    def send(self, node: NodeHandle, order: commands.Command) -> None:
        if isinstance(order, commands.Plan):
            self.preparations.append(Preparation(self.loop, node.index, order, bytes(32), lambda said_: self.hear(node, said_), self.fail))
            if order.ranks is not None:
                self.preparations[-1].look()
        elif isinstance(order, commands.PreparationCommand):
            self.preparations[node.index].obey(order)

    def send_all(self, order: commands.Command) -> None:
        for node in self.all:
            self.send(node, order)

    def forget(self, *kinds: type[reports.Message]) -> None:
        for node in self.all:
            node.forget(*kinds)

    def hear(self, node: NodeHandle, message: reports.Report) -> None:
        node.note(message)
        if isinstance(message, reports.StagingReport):
            self.staging.heard(node, message)
        elif isinstance(message, reports.StagingEnded):
            self.kept_when_ended.append(self.entries(self.caches[node.index]))

    def fail(self, during: str, error: str, message: str) -> None:
        raise AssertionError(f"{during}: {error}: {message}")

    @staticmethod
    def entries(cache: Path) -> list[str]:
        return sorted(path.name for path in (cache / "datasets").iterdir())

    def stage(self, readers: int | None = None) -> None:
        self.staging.look(self.plan, lambda node: str(self.caches[int(node.name[1:])]))
        self.staging.run(self.plan, readers)


@pytest.fixture
def new_nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    for preparation in found.preparations:
        preparation.stop()
        with contextlib.suppress(FileNotFoundError):
            preparation.directory.remove()


def test_while_a_node_lacks_the_dataset_another_run_that_shares_one_gets_the_image(
    new_nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where storage is limited, the image comes after the dataset. A stager that has its archive's lock by then stops the other run."""
    program, sif = tmp_path / "bin" / "apptainer", tmp_path / "a.sif"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    sif.write_bytes(CONTENT)
    path = archive(pin(str(sif), "apptainer"), tmp_path)
    nodes = new_nodes
    framework = replace(FRAMEWORK, folder=str(program.parent))
    image = commands.Image(archive=str(path), cache=str(tmp_path / "images-here"))
    nodes.plan = structs.replace(nodes.plan, ranks=structs.replace(RANKS, framework=framework, engine="apptainer", image=image))
    others: list[StagedFiles] = []
    end = time.monotonic() + END_S

    def other_run() -> None:
        others.append(stage(path, nodes.caches[0], progress=in_time, options=StageOptions(single=True)))
        slow.close()

    def in_time(_done: int, _total: int) -> None:
        assert time.monotonic() < end, "it waits for the lock of the first run's stager"

    with contextlib.ExitStack() as slow:
        assert slow.enter_context(Lock(open_cache(nodes.caches[2]), Path(nodes.plan.source or "").name, "stage")).try_acquire()
        nodes.loop.after(OTHER_RUN_S, other_run)
        nodes.stage(readers=1)
    assert [node.has_reported(reports.DatasetIsHere) for node in nodes.all] == [True] * NODES
    assert others[0].storage_bytes == len(CONTENT)


def test_a_lease_that_a_killed_stager_of_an_archive_has_left_goes_with_the_others(tmp_path: Path) -> None:
    """Also where the stager was killed before it told of the archive: nobody knows its name in the cache then."""
    source, cache = random_dataset(tmp_path / "storage", [20_000]), tmp_path / "cache"
    told: list[Any] = []
    own = structs.replace(PLAN, source=str(source), cache=str(cache), run_dir=str(tmp_path / "run"))
    loop = Loop()
    preparation = Preparation(loop, 0, own, b"", told.append, lambda *why: told.append(why))
    preparation.obey(commands.Stage())
    assert loop.until(lambda: any(isinstance(message, reports.Staged | tuple) for message in told), END_S)
    (lease,) = leases(cache)
    left = cache / "leases" / "image.tar.zst-0123456789ab" / lease.name
    left.parent.mkdir()
    shutil.copy(lease, left)
    preparation.stop()
    preparation.release()
    assert leases(cache) == []


def leases(cache: Path) -> list[Any]:
    return list(cache.glob("leases/*/*.json"))


def test_what_a_stager_says_is_told_with_what_it_stages() -> None:
    told: list[Any] = []
    preparation = Preparation(Loop(), 0, PLAN, b"", told.append, lambda *why: told.append(why))
    preparation._hear("dataset", WorkLine(progress=(3, 9), waiting=True, listening=Address(address="::1", port=1, have="all")))
    listening = reports.Listening(what="dataset", address="::1", port=1, have="all")
    assert told == [reports.Progress(what="dataset", done=3, total=9), reports.Waiting(what="dataset"), listening]
