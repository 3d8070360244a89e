"""The memory that Slurm granted is the limit of the containers, and a run that wants more says so in its record."""

import os
from collections.abc import Iterator

import pytest

from containers.spec import TAG
from tests.minicluster import Cluster
from tests.slurm.test_container_runs import ContainerWorld, container_world

pytestmark = pytest.mark.slow


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.long)])
def world(docker_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ContainerWorld]:
    with container_world(docker_cluster, f"m{os.getpid()}-{request.param}", request.param) as world:
        yield world


def test_memory_beyond_the_grant_ends_a_run_as_oom_whoever_is_killed(world: ContainerWorld) -> None:
    victims = {"eat": "rank", "eat-with-the-first": "container"}
    runs = {victims[action]: world.cell(each=2, do={"1": [3, action]}) for action in victims}
    for cell in world.cells:
        cell["device"] = "cuda"
    world.write()
    world.pin()
    commands = [f"{world.supervisor(run_id)} || exit" for run_id in runs.values()]
    options = ("--nodes=1", "--nodelist=n1", "--ntasks-per-node=1", "--gres=gpu:2", "--mem=200")
    job = world.submit(world.script(*commands), *options, "--time=5")
    assert world.ended(job).state == "completed", world.log()
    for victim, run_id in runs.items():
        record = world.record(run_id)
        assert record["status"] == "oom", (victim, world.log())
        assert "count of processes killed for want of memory" in record["status_reason"]
        if victim == "rank":
            assert record["failed_rank"]["rank"] == 1
        assert record["failed_rank"]["signal"] == "SIGKILL"
    assert world.told("n1", "ps", "--all", "--quiet", "--filter", f"label={TAG}") == ""
