"""A run in containers that Slurm makes of steps: the real pyxis, which has a real enroot start them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import images, runtimes
from tests.endings.place import Place
from tests.minicluster import Cluster, missing_here

pytestmark = [pytest.mark.slow, pytest.mark.long]
REMOVED_S = 30.0


@pytest.fixture
def place() -> Iterator[Place]:
    if reason := missing_here() or images.missing_here():
        pytest.skip(reason)
    if runtimes.path_of("pyxis") is None or not runtimes.plugin().exists():
        pytest.skip("pyxis is not here: tests/runtimes/build-pyxis.sh")
    cluster = Cluster.up(f"pyx{os.getpid()}", nodes=2, gpus=0, cores=8)
    try:
        yield Place(cluster, "pyxis", "pyxis")
    finally:
        cluster.down()


def containers(place: Place, node: str) -> str:
    """Those that enroot knows there."""
    return str(place.cluster.exec(node, ["enroot", "list"], env=dict(place.login_environ)).stdout)


def test_a_run_on_two_nodes_has_its_ranks_in_steps_of_pyxis_and_leaves_nothing_unpacked(place: Place) -> None:
    run_id = place.cell(nodes=2, each=2)
    place.cells[-1]["device"] = "cpu"
    place.write()
    job = place.batch(run_id, place.cluster.nodes)
    assert place.ended(job).state == "COMPLETED", place.log()
    record = place.record(run_id)
    assert (record["status"], record["engine"], len(record["nodes"])) == ("ok", "pyxis", 2), place.log()
    place.wait_for(lambda: not any(containers(place, node) for node in place.cluster.nodes), REMOVED_S)
