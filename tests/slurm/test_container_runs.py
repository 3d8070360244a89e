"""Runs in containers on a real cluster: the image pinned on the login node, loaded on the nodes from storage, named in the records."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from base.humanize import format_size
from containers.spec import TAG
from tests import images
from tests.minicluster import Cluster
from tests.slurm.test_scheduler import ClusterWorld
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import ROOT

pytestmark = pytest.mark.slow


class ContainerWorld(ClusterWorld):
    """With an image that only the login node has, and that is another one for every world."""

    login_environ: Mapping[str, str] = {}
    """What the user has set there."""
    user_id = os.geteuid()
    """Whose runs they are."""

    def __init__(self, cluster: Cluster, name: str, engine: str) -> None:
        super().__init__(cluster, name)
        self.engine, self.tag = engine, f"slipway-test/{name}:1"
        self.site |= {"engine": engine, "images": {"fake": self.tag}, "device": "cuda", "gpus_per_node": 8}
        if engine == "podman":
            cluster.load_image(images.base_image(), "login", engine=engine)
        made = self.told("login", "create", "--network", "host", images.BASE, "true").strip()
        self.told("login", "commit", "--change", f"LABEL slipway.test={name}", made, self.tag)
        self.told("login", "rm", made)

    def told(self, node: str, *words: str) -> str:
        done = self.cluster.exec(node, [self.engine, *words], timeout=300)
        assert done.returncode == 0, done
        return str(done.stdout)

    def pin(self) -> dict[str, str]:
        """By the command of the rule; what it says of the image."""
        done = self.cluster.exec("login", self.image_argv(), cwd=ROOT, timeout=300, env={"PYTHONPATH": str(ROOT), **self.login_environ})
        assert done.returncode == 0, done
        assert self.images is not None
        (entry,) = json.loads(self.images.read_text())["images"].values()
        pinned: dict[str, str] = entry["image"]
        return pinned

    def ours(self, node: str) -> list[str]:
        """Ids of the images that runs have loaded there; without the algorithm."""
        prefix = "localhost/" if self.engine == "podman" else ""
        words = ("images", "--no-trunc", "--filter", f"reference={prefix}slipway-loaded/u{self.user_id}", "--format", "{{.ID}}")
        return [image.removeprefix("sha256:") for image in self.told(node, *words).split()]

    def remove(self) -> None:
        for node in self.cluster.nodes:
            for image in self.ours(node):
                self.told(node, "rmi", "--force", image)
            self.cluster.exec(node, ["rm", "-rf", f"/local/{self.path.name}"])
        self.told("login", "rmi", self.tag)


@contextmanager
def container_world(cluster: Cluster, name: str, engine: str) -> Iterator[ContainerWorld]:
    world = ContainerWorld(cluster, name, engine)
    try:
        yield world
    finally:
        cluster.exec("login", ["scancel", "--user", "root"])
        world.wait_for(lambda: not cluster.exec("login", ["squeue", "--noheader"]).stdout.strip())
        world.remove()


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.long)])
def world(docker_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ContainerWorld]:
    with container_world(docker_cluster, f"c{os.getpid()}-{request.param}", request.param) as world:
        yield world


def test_one_study_on_two_nodes_that_read_the_image_once_and_on_one(world: ContainerWorld) -> None:
    runs = {nodes: world.cell(nodes=nodes, each=2) for nodes in (2, 1)}
    for cell in world.cells:
        cell["device"] = "cuda"
    world.write()
    pinned = world.pin()
    image_id = pinned["image_id"].removeprefix("sha256:")
    assert [image_id in world.ours(node) for node in ("n1", "n2")] == [False, False]
    for nodes, run_id in runs.items():
        options = (f"--nodes={nodes}", "--nodelist=n1" if nodes == 1 else "--nodelist=n1,n2", "--ntasks-per-node=1", "--gres=gpu:2")
        job = world.submit(world.script(f"exec {world.supervisor(run_id)}"), *options, "--time=5")
        assert world.ended(job).state == "completed", world.log()
        record = world.record(run_id)
        validate_record(record)
        assert (record["status"], record["engine"]) == ("ok", world.engine), world.log()
        named = [record["provenance"][key] for key in ("image", "image_digest", "image_id")]
        assert named == [world.tag, pinned["digest"], pinned["image_id"]]
        for node in record["nodes"]:
            assert len(node["gpus_seen"]) == 2
            assert set(node["gpus_seen"]) == {gpu["uuid"] for gpu in node["gpus"]} <= {c.uuid for c in world.cluster.gpus(node["name"])}
            assert node["image_s"] > 0
    assert [image_id in world.ours(node) for node in ("n1", "n2")] == [True, True]
    (archive,) = (path for path in Path(world.site["storage"], "images").iterdir() if path.suffix == ".zst")
    size = format_size(archive.stat().st_size)
    assert world.log().count("were read from storage") == 1, "the second run finds it"
    assert f"image: {size} were read from storage, {size} sent by other nodes" in world.log()
    for node in ("n1", "n2"):
        kept = world.cluster.exec(node, ["ls", "-A", f"/local/{world.path.name}/datasets"]).stdout
        assert archive.name not in kept, "its room is given back"
    for node in ("n1", "n2"):
        assert world.told(node, "ps", "--all", "--quiet", "--filter", f"label={TAG}") == ""
    assert {path.stat().st_uid for path in world.results.rglob("*")} == {os.geteuid()}
