"""Leftover containers of Slurm jobs: one question for each job, none after the first silence, and what is not sure stays."""

import os
import sys
from collections.abc import Iterator

import pytest

from cluster.types import Allocation, Node
from containers.spec import Owner, labels_of
from tests import images
from tests.minicluster import Cluster
from tests.workflow.run.world import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]

REAP = [sys.executable, "-m", "workflow.commands.main", "reap"]
GONE = ("900001", "900002", "900003")
EACH = 3
LIMIT_S = 300.0
"""Of the whole command: a question for each container, with a minute of patience, would take more than twice as long."""


def names(cluster: Cluster) -> set[str]:
    done = cluster.exec("n1", ["docker", "ps", "--all", "--filter", "label=slipway.tag", "--format", "{{.Names}}"], check=True)
    return set(done.stdout.split())


@pytest.fixture
def living(docker_cluster: Cluster) -> Iterator[str]:
    """A job that runs."""
    submit = ["sbatch", "--parsable", "--nodelist=n1", "--output=/dev/null", "--wrap=exec sleep 600"]
    job = docker_cluster.exec("login", submit, check=True).stdout.strip()
    yield job
    docker_cluster.exec("login", ["scancel", job], check=True)
    for name in names(docker_cluster):
        docker_cluster.exec("n1", ["docker", "rm", "--force", name])


def test_a_silent_controller_costs_a_reap_its_patience_once(docker_cluster: Cluster, living: str) -> None:
    cluster = docker_cluster
    node = Node(name="n1", hostname="n1", address="10.0.0.1")
    for job in (*GONE, living):
        allocation = Allocation(scheduler="slurm", job_id=job, nodes=(node,), device="cpu", exclusive=True)
        for number in range(EACH):
            owner = Owner(run_id="run", attempt=1, tag=f"run-a{number}-0123abcd", uid=os.geteuid())
            labels = [word for key, value in labels_of(allocation, "n1", owner) for word in ("--label", f"{key}={value}")]
            argv = ["docker", "create", "--network", "host", *labels, "--name", f"left-{job}-{number}", images.BASE, "true"]
            cluster.exec("n1", argv, check=True)
    everything = names(cluster)
    assert len(everything) == EACH * (len(GONE) + 1)
    options = {"cwd": ROOT, "env": {"PYTHONPATH": str(ROOT), "SLIPWAY_SITE": str(cluster.site_file)}}
    cluster.ctld("stop")
    try:
        said = cluster.exec("n1", [*REAP, "--remove"], timeout=LIMIT_S, **options)
    finally:
        cluster.ctld("cont")
    assert said.returncode == 0, said
    assert said.stdout.count("lives cannot be told now") == len(everything), said
    assert names(cluster) == everything
    said = cluster.exec("n1", [*REAP, "--remove"], timeout=LIMIT_S, **options)
    assert said.returncode == 0, said
    assert said.stdout.count(f"stays: job slurm:{living}:0 lives") == EACH, said
    assert names(cluster) == {name for name in everything if f"-{living}-" in name}
