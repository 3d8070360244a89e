"""A run with GPUs in containers of engines whose image is a file, the real ones, in a job of Slurm that hides no GPU."""

import os

import pytest

from tests import images, runtimes
from tests.endings.place import Place
from tests.minicluster import Cluster, missing_here
from tests.slurm.test_pyxis import run

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("engine", ["apptainer", "enroot"])
def test_a_run_tells_of_the_gpus_that_it_was_not_granted(engine: str) -> None:
    if reason := missing_here(docker=True) or images.missing_here():
        pytest.skip(reason)
    if runtimes.path_of(engine) is None:
        pytest.skip(f"{engine} is not here: tests/runtimes/{'get' if engine == 'apptainer' else 'build'}-{engine}.sh")
    with Cluster.up(f"file{os.getpid()}", nodes=2, gpus=4, cores=8, docker=True) as cluster:
        run(Place(cluster, "file", engine), *cluster.nodes)
