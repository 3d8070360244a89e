"""Whole studies on a real cluster, through Snakemake: the frameworks of Slipway in containers, and programs of a study, without too."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from containers.frameworks import load_framework
from tests import framework_images, images, launchers
from tests.minicluster import Cluster
from tests.slurm.conftest import remove_images
from tests.slurm.framework_rows import REFERENCE, Kind, check_row, finish, kinds_of, study_of
from tests.slurm.place import Place

pytestmark = [pytest.mark.slow, pytest.mark.long]

KINDS = [kind for name in framework_images.LEVEL_A for kind in kinds_of(name) if kind.strategy != "horovod"]
"""Whose image does not have it."""
PROGRAMS = {"classifier": load_framework("pytorch").image, "mpi": images.MPI, "served": images.BASE}


@pytest.fixture(autouse=True)
def room(docker_cluster: Cluster, engine: str) -> Iterator[None]:
    """The images of four frameworks have 7 GB on each host."""
    yield
    if engine != "bare":
        remove_images(docker_cluster, "login", engine, "*/slipway/*" if engine == "podman" else "slipway/*")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_frameworks_train_the_same_network_in_their_images(docker_cluster: Cluster, engine: str) -> None:
    trained(docker_cluster, engine, "frameworks", KINDS)


@pytest.mark.parametrize("engine", ["docker"])
@pytest.mark.parametrize("name", framework_images.LEVEL_B)
def test_an_older_framework_trains_the_network_of_pytorch_in_its_image(docker_cluster: Cluster, engine: str, name: str) -> None:
    trained(docker_cluster, engine, name, [REFERENCE, *kinds_of(name)])


def trained(cluster: Cluster, engine: str, study: str, kinds: list[Kind]) -> None:
    """Real training. The images are on the login node, as `make image` leaves them."""
    names = list(dict.fromkeys(kind.framework for kind in kinds))
    if why := framework_images.missing_here(*names):
        pytest.skip(why)
    for name in names:
        cluster.load_image(framework_images.image(name), "login", engine=engine)
    place = Place(cluster, engine, study, partial(study_of, kinds=kinds))
    finished = finish(place, kinds)
    pins = json.loads(next(place.results.glob("images-*.json")).read_text())["images"]
    for (kind, _), record in finished.records.items():
        pinned = pins[kind.framework]["image"]
        assert (record["provenance"]["image_id"], record["provenance"]["image_digest"]) == (pinned["image_id"], pinned["digest"])
    for kind in kinds:
        check_row(finished, kind)


@pytest.mark.parametrize("engine", ["docker", "podman", "bare"])
def test_programs_of_a_study_by_torchrun_mpirun_and_with_sidecars(docker_cluster: Cluster, engine: str) -> None:
    if why := framework_images.missing_here("pytorch") or images.mpi_missing_here():
        pytest.skip(why)
    in_images = engine != "bare"
    for archive in (framework_images.image("pytorch"), images.mpi_image(), images.base_image()) if in_images else ():
        docker_cluster.load_image(archive, "login", engine=engine)
    place = Place(docker_cluster, engine, "programs", partial(launchers.study, images=PROGRAMS if in_images else None))
    launchers.write_folders(place.root)
    launchers.check(place.records())
