"""Runs in containers that Slurm makes of steps: the real pyxis, which has a real enroot start them."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import images, runtimes
from tests.endings.place import Place
from tests.minicluster import Cluster, missing_here
from tests.minicluster.spec import USER

pytestmark = [pytest.mark.slow, pytest.mark.long]
GONE = 900001


@pytest.fixture(params=[None, USER], ids=["root", "user"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Of root, whose trees lie on the node, or of a user whose home has those of all nodes."""
    if reason := missing_here() or images.missing_here():
        pytest.skip(reason)
    if runtimes.path_of("pyxis") is None or not runtimes.plugin().exists():
        pytest.skip("pyxis is not here: tests/runtimes/build-pyxis.sh")
    opened = (sys.base_prefix, str(runtimes.place()), str(images.cache())) if request.param else ()
    with Cluster.up(f"pyx{os.getpid()}", nodes=2, gpus=4, cores=8, docker=True, opened=opened) as cluster:
        yield Place(cluster, "pyxis", "pyxis", request.param)


def unpacked(place: Place, node: str) -> list[str]:
    """What enroot has on that node, of whomever, but for what another node has unpacked in the same place."""
    told = place.cluster.exec(node, ["enroot", "list"], env=dict(place.login_environ), user=place.user, check=True).stdout.split()
    other = next(name for name in place.cluster.nodes if name != node)
    return [name.removeprefix("pyxis_") for name in told if f"-{other}-" not in name]


def run(place: Place, *nodes: str) -> tuple[dict[str, Any], str]:
    """Record and job of a run of two ranks on each."""
    run_id = place.cell(nodes=len(nodes), each=2)
    place.cells[-1]["device"] = "cuda"
    place.write()
    job = place.batch(run_id, nodes)
    assert place.ended(job).state == "completed", place.log()
    record = place.record(run_id)
    assert (record["status"], record["engine"], len(record["nodes"])) == ("ok", place.engine, len(nodes)), place.log()
    for node in record["nodes"]:  # Slurm constrains no devices here: the record tells of the others
        every, granted = {card.uuid for card in place.cluster.gpus(node["name"])}, {gpu["uuid"] for gpu in node["gpus"]}
        assert set(node["gpus_seen"]) == every > granted
        (said,) = [warning for warning in record["warnings"] if warning.startswith(f"{node['name']}: the container shows 2 GPUs beyond")]
        assert {uuid for uuid in every if uuid in said} == every - granted
    return record, job


def test_an_image_is_unpacked_once_on_each_node(place: Place) -> None:
    first, _ = run(place, *place.cluster.nodes)
    trees = {node: unpacked(place, node) for node in place.cluster.nodes}
    short = first["provenance"]["image_id"].removeprefix("sha256:")[:12]
    for node, names in trees.items():
        assert [name.rpartition("-")[0] for name in names] == [f"slipway-u{place.user_id}-{short}-{node}"]
    second, _ = run(place, "n1")
    assert unpacked(place, "n1") == trees["n1"]
    assert second["nodes"][0]["image_s"] < first["nodes"][0]["image_s"]


@pytest.mark.parametrize("place", [None], indirect=True)
def test_a_tree_that_somebody_took_away_is_unpacked_again(place: Place) -> None:
    run(place, "n1")
    (before,) = unpacked(place, "n1")
    place.cluster.exec("n1", ["enroot", "remove", "--force", f"pyxis_{before}"], env=dict(place.login_environ), check=True)
    run(place, "n1")
    (after,) = unpacked(place, "n1")
    assert after == before
