"""Programs of a study in containers: steps that are read from what they print, a tree of files, sidecars, Open MPI."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from containers.engines import Engine
from tests import images, runtimes
from tests.containers.conftest import REAL, STAND_IN
from tests.containers.test_runs import containers, mounts_of, pids_of
from tests.data_prep.tree.corpus import SIZES
from tests.workflow.run.test_mpirun import run_of
from tests.workflow.run.test_program_output import LINE
from tests.workflow.run.test_programs import LOOP, program, with_tree
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


MISBEHAVES = """
import os, signal
import slipway_events
for path in ("/elsewhere", os.path.join(os.path.dirname(__file__), "cache.json"), os.environ["SLIPWAY_LIB"] + "/slipway_events.py"):
    try:
        open(path, "w")
    except OSError as error:
        print(error.errno)
if os.fork() == 0:
    os.setsid()
    os.fork() or os.execvp("sleep", ["sleep", "31557600"])
    os._exit(0)
run = slipway_events.start(framework="mine", parameters=3)
for batch in run.steps([[1, 2]], samples=len):
    if run.step == 3:
        os.mkdir("/elsewhere")
    run.loss(1.0)
"""


@pytest.mark.parametrize(
    "acting", ["docker", *(pytest.param(name, marks=pytest.mark.long) for name in ("podman", "apptainer"))], indirect=True
)
def test_a_program_writes_nowhere_else_and_its_daemon_goes_with_the_container(world: World, image: str) -> None:
    run_id = program(world, MISBEHAVES, image=image)
    record = ended(world, run_id)
    assert (record["status"], record["failed_rank"]["rank"]) == ("error", 0)
    words = "OSError: [Errno 30] Read-only file system: '/elsewhere'; a program may write to SLIPWAY_OUT ({out}, where it starts)"
    assert words in record["status_reason"]
    log = (world.run_dir(run_id) / "attempts" / "1" / "logs" / "rank-0.log").read_text()
    assert log.splitlines()[:3] == ["30"] * 3
    assert not [line for line in record["warnings"] if "folder" in line]
    assert not [pid for pid in pids_of("sleep 31557600") if str(world.path) in mounts_of(pid)]


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


@pytest.mark.parametrize("acting", ["docker"], indirect=True)
def test_a_rank_of_mpi_that_is_killed_in_a_container_is_named(world: World, with_mpi: str) -> None:
    run_id = run_of(world, "kill")
    world.cells[-1]["program"]["image"] = with_mpi
    world.write()
    named(world, run_id, "rank 3 on local-1 was killed from outside by SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("acting", ["docker"], indirect=True)
@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("os.kill(os.getpid(), 9)", "rank 3 on local-1 was killed from outside by SIGKILL"),
        ("os.kill(os.getppid(), 9)", "torchrun on local-1 was killed from outside by SIGKILL"),
    ],
)
def test_who_is_killed_below_torchrun_in_a_container_is_named(world: World, image: str, does: str, words: str) -> None:
    """With the PyTorch of this machine in the place where the image's Python looks for packages."""
    torch = find_spec("torch")
    assert torch is not None
    packages = Path(str(torch.origin)).parents[1]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    mounts = [{"source": str(packages), "target": f"/usr/local/lib/{version}/dist-packages", "writable": False}]
    step = f"run.rank == 3 and run.step == 3 and {does}; __import__('time').sleep(0.02)"
    run_id = program(world, LOOP.format(step=step), nodes=2, each=2, launcher="torchrun", image=image, mounts=mounts)
    world.cells[-1]["steps"] = {"warmup": 0, "measured": 100_000}
    world.write()
    named(world, run_id, words)


def named(world: World, run_id: str, words: str) -> None:
    """A run that was prevented by a kill, and left nothing."""
    code, log = world.run(run_id)
    assert code == 23, log
    assert checked(world, run_id, 1)["status_reason"].startswith(words)
    assert containers(world.site["engine"]) == []
    assert world.left() == []
