"""One real cluster for the tests of this folder; each test leaves it as it found it."""

import os
from collections.abc import Iterator

import pytest

from tests import images
from tests.minicluster import Cluster, missing_here
from tests.minicluster.waiting import wait_until


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """3 nodes x 2 GPUs; a node that is silent for 10 s is down."""
    if reason := missing_here():
        pytest.skip(reason)
    with Cluster.up(f"test{os.getpid()}", nodes=3, gpus=2, cores=4, slurmd_timeout=10) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def empty_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    """No job outlives its test, not even one of which a killed slurmctld has forgotten that it ended."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.exec("login", ["scancel", "--user=root"], timeout=60)
        wait_until(lambda: not cluster.exec("login", ["squeue", "--noheader"], timeout=60).stdout.strip(), 60.0, "the queue is empty")


@pytest.fixture(autouse=True)
def no_loaded_images(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a run has loaded on a node is not there for the next test, which looks whether its own brings it."""
    yield
    if "docker_cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("docker_cluster")
        for node in cluster.nodes:
            for engine, prefix in (("docker", ""), ("podman", "localhost/")):
                remove_images(cluster, node, engine, f"{prefix}slipway-loaded/u0")


def remove_images(cluster: Cluster, host: str, engine: str, reference: str) -> None:
    """Those of that name; this machine gets their room back."""
    argv = [engine, "images", "--filter", f"reference={reference}", "--format", "{{.Repository}}:{{.Tag}}"]
    for tag in (found := cluster.exec(host, argv, timeout=60).stdout.split()):
        cluster.exec(host, [engine, "rmi", "--force", tag], timeout=300)
    if found:
        cluster.exec(host, ["fstrim", "/local"], timeout=300, check=True)


@pytest.fixture(scope="session")
def docker_cluster() -> Iterator[Cluster]:
    """2 nodes x 8 GPUs, a dockerd on each and on the login node, which has the base image of tests, and podman."""
    if reason := missing_here(docker=True) or images.missing_here():
        pytest.skip(reason)
    archive = images.base_image()
    with Cluster.up(f"dock{os.getpid()}", nodes=2, gpus=8, cores=8, docker=True, kill_wait=30) as cluster:
        cluster.load_image(archive, "login")
        yield cluster
