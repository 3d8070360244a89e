"""Programs of a study in containers: steps that are read from what they print, a tree of files, sidecars, Open MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers.engines import Engine
from tests import images, runtimes
from tests.containers.conftest import REAL, STAND_IN
from tests.containers.test_runs import containers
from tests.data_prep.tree.corpus import SIZES
from tests.workflow.run.test_mpirun import run_of
from tests.workflow.run.test_program_output import LINE
from tests.workflow.run.test_programs import with_tree
from tests.workflow.run.test_runs import checked
from tests.workflow.run.test_sidecars import SERVE
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, socket, sys, time
data, head, port, total = sys.argv[1:]
files = sorted(os.path.relpath(os.path.join(place, name), data) for place, _, names in os.walk(data) for name in names)
print(files, os.statvfs(data).f_flag & os.ST_RDONLY, json.loads(os.environ["TF_CONFIG"])["task"]["index"])
for _ in range(1000):
    try:
        link = socket.create_connection((head, int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
assert link.recv(1) == b"."
for step in range(1, int(total) + 1):
    time.sleep(0.02)
    print(f"step {step} of {total}, loss {1 / step}")
"""
COMMAND = ["{python}", "{folder}/train.py", "{data}", "{head}", "{port.echo}", "{steps.total}"]
SIDECARS = [
    {"name": "server", "where": "head", "command": ["{python}", "{folder}/serve.py", "answer", "{head}", "{port.echo}"]},
    {"name": "waiter", "where": "each", "command": ["{python}", "{folder}/serve.py", "wait"]},
]


@pytest.fixture
def world(tmp_path: Path, acting: Engine) -> Iterator[World]:
    if acting.NAME == "bare":
        pytest.skip("tests/workflow/run is about bare")
    world = World(tmp_path)
    world.site |= {"engine": acting.NAME}
    yield world
    world.close()


def ended(world: World, run_id: str) -> dict[str, Any]:
    code, log = world.run(run_id)
    assert code == 0, log
    assert containers(world.site["engine"]) == []
    assert world.left() == []
    return checked(world, run_id)


def test_steps_from_output_with_a_tree_of_files_sidecars_and_a_place_among_the_ranks(world: World, image: str) -> None:
    sidecars = [{"env": {}, "ends": "stopped", **one} for one in SIDECARS]
    log = {"log": {"step": LINE, "every": 1, "ranks": "all"}}
    run_id = with_tree(world, TRAIN, 2, image=image, command=COMMAND, events=log, sidecars=sidecars, env_from=["tf_config"])
    (world.path / "train" / "serve.py").write_text(SERVE)
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"], record["steps_source"]) == ("ok", None, "log")
    assert (record["performance"]["num_measured_steps"], record["training"]["losses"][1]) == (6, [1, 0.5])
    assert (record["dataset"]["name"], record["dataset"]["bytes"]) == ("corpus", sum(SIZES.values()))
    logs = world.run_dir(run_id) / "attempts" / "1" / "logs"
    assert [(logs / f"rank-{rank}.log").read_text().splitlines()[0] for rank in (0, 1)] == [f"{sorted(SIZES)} 1 {rank}" for rank in (0, 1)]
    assert (logs / "sidecar-server-0.log").read_text() == "all are here\n"
    assert [(logs / f"sidecar-waiter-{index}.log").read_text() for index in (0, 1)] == ["I wait\n", "I wait\n"]
    digest = record["provenance"]["program_digest"]
    assert {path.name for path in (world.results / "programs" / digest).iterdir()} == {"train.py", "serve.py"}


@pytest.fixture
def with_mpi(acting: Engine, image: str) -> str:
    """An image with Open MPI, which the engine has."""
    if STAND_IN in os.environ:
        if shutil.which("mpirun") is None:
            pytest.skip("Open MPI is not here (openmpi-bin)")
        return image  # stands for this machine's own system
    if why := images.mpi_missing_here():
        pytest.skip(why)
    if acting.NAME in REAL:
        return str(runtimes.image_of(acting.NAME, images.mpi_image()))
    subprocess.run([acting.NAME, "load", "--input", str(images.mpi_image())], check=True, capture_output=True, timeout=300)
    return images.MPI


@pytest.mark.parametrize("acting", ["docker", "apptainer", pytest.param("enroot", marks=pytest.mark.long)], indirect=True)
def test_one_mpirun_starts_the_ranks_in_the_containers_of_all_nodes(world: World, with_mpi: str) -> None:
    run_id = run_of(world, "work")
    world.cells[-1]["program"]["image"] = with_mpi
    world.write()
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"]) == ("ok", None)
    assert record["training"]["losses"][0] == [0, 0 + 1 + 2 + 3]
    assert [file["path"] for file in record["files"] if "mpi" in file["path"]] == ["logs/sidecar-mpirun-0.log"]
