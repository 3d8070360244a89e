"""The launcher mpirun with Debian's Open MPI, on two nodes of this machine: what works, and who is named when something does not."""

import os
import re
import shutil
import signal

import pytest

from tests.minicluster.processes import read
from tests.workflow.run.test_programs import program
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import PATIENCE_S, World

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not here (openmpi-bin)")]

TRAIN = """
import ctypes, os, sys, time
import slipway_events

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)

def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))

def total(value):
    ours, all_of_us = ctypes.c_int(value), ctypes.c_int()
    arguments = (1, handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), handle("ompi_mpi_comm_world"))
    mpi.MPI_Allreduce(ctypes.byref(ours), ctypes.byref(all_of_us), *arguments)
    return all_of_us.value

mpi.MPI_Init(None, None)
rank = int(os.environ["RANK"])
assert rank == int(os.environ["OMPI_COMM_WORLD_RANK"])
run = slipway_events.start(framework="mine", parameters=3)
for batch in run.steps([[1, 2]], samples=len):
    if rank == 3 and run.step == 2 and sys.argv[1] != "work":
        {"exit": lambda: sys.exit(3), "kill": lambda: os.kill(os.getpid(), 9), "stop": lambda: os.kill(os.getpid(), 19)}[sys.argv[1]]()
    if len(sys.argv) > 2:
        time.sleep(float(sys.argv[2]))
    run.loss(float(total(rank)))
mpi.MPI_Finalize()
"""


def run_of(world: World, *words: str, nodes: int = 2, each: int = 2, measured: int = 6) -> str:
    run_id = program(world, TRAIN, nodes=nodes, each=each, launcher="mpirun", command=["{python}", "{folder}/train.py", *words])
    world.cells[-1]["steps"] = {"warmup": 0, "measured": measured}
    world.write()
    return run_id


def test_one_mpirun_starts_the_ranks_of_all_nodes(world: World) -> None:
    run_id = run_of(world, "work")
    record = ended(world, run_id)
    assert (record["status"], record["status_reason"]) == ("ok", None)
    assert record["training"]["losses"][0] == [0, 0 + 1 + 2 + 3]
    logs = {path.name for path in (world.run_dir(run_id) / "attempts" / "1" / "logs").glob("*.log")}
    assert {"rank-0.log", "rank-3.log", "sidecar-mpirun-0.log", "sidecar-orted-0.log", "sidecar-orted-1.log"} <= logs
    assert not [file["path"] for file in record["files"] if "mpi" in file["path"] and not file["path"].startswith("logs/")]


def test_a_node_that_is_gone_is_named_and_none_of_its_processes_stays(world: World) -> None:
    run_id = run_of(world, "work", "0.02", each=1, measured=100_000)
    process = world.in_training(run_id, 3, rank=1)
    os.kill(world.node_program(1), signal.SIGKILL)
    log = world.end_of(process, 24)
    assert re.search(r"the node program of local-1 \(.*\) is gone", log)
    world.wait_for(lambda: world.processes() == [], PATIENCE_S)


@pytest.mark.parametrize(("name", "node"), [("mpirun", 0), ("orted", 1)])
def test_a_part_of_mpi_that_is_killed_is_named(world: World, name: str, node: int) -> None:
    run_id = run_of(world, "work", "0.02", each=1, measured=100_000)
    process = world.in_training(run_id, 3, rank=1)
    on_node = f"SLIPWAY_NODE_RANK={node}".encode()
    victims = [pid for pid in world.pids(name) if read(pid, "cmdline").split(b"\0")[0].endswith(name.encode())]
    victims = [pid for pid in victims if on_node in read(pid, "environ").split(b"\0")]
    os.kill(victims[0], signal.SIGKILL)
    log = world.end_of(process, 23)
    assert f"sidecar {name} on local-{node} was killed from outside by SIGKILL" in log
    assert world.left() == []
