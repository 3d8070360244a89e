"""What a run will start is a value."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from base.errors import UnsupportedRequest
from cluster.types import Allocation, Node
from containers.engines import bare
from containers.models import Model
from containers.spec import Owner, Paths
from data_prep.spec import parse_spec, spec12
from tests.workflow.run.cells import cell, document, made_site
from workflow.run import plan
from workflow.run.plan import container_spec, describe_framework, port_names
from workflow.run.storage.description import build_name, model_for
from workflow.study.cell import Run

ROOT = Path(__file__).parents[3]
PATHS = Paths(cell="/w/cell.json", data="/w/data", lib="/w/lib", beat="/w/beat", out="/w/out", resume="/w/resume", program="/f")
FRAMEWORK = plan.Framework(
    name="f", folder="/f", launcher="ranks", command=("{python}", "{folder}/program.py"), image="i", python="python3"
)

PORTS = ((61001,),)


def allocation(nodes: int = 2, **changes: Any) -> Allocation:
    made = tuple(
        Node(name=f"n{index}", hostname="h", address=f"10.0.0.{index}", cores=tuple(range(4 * index, 4 * index + 4)), **changes)
        for index in range(nodes)
    )
    return Allocation(scheduler="local", job_id="1", nodes=made, device="cpu", exclusive=True)


def work(launcher: str = "ranks", each: int = 2, threads: Any = "auto") -> plan.Workload:
    owner = Owner(run_id="run", attempt=1, tag="run-a1-0011")
    cell = document(gpus_per_node=each, threads=threads)
    return plan.Workload(owner=owner, framework=replace(FRAMEWORK, launcher=launcher), cell=cell)


def test_ranks_are_numbered_over_the_nodes() -> None:
    spec = container_spec(work(), allocation(), 1, PATHS, ((61001,), ()))
    assert [process.ranks for process in spec.processes] == [(2,), (3,)]
    assert dict(spec.processes[1].env) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "61001",
    }
    env = dict(spec.env)
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "2"
    assert (env["SLIPWAY_NODE_RANK"], env["SLIPWAY_NUM_NODES"], env["SLIPWAY_GPUS_PER_NODE"]) == ("1", "2", "2")
    assert env["SLIPWAY_ATTEMPT"] == "run-a1-0011"
    assert spec == container_spec(work(), allocation(), 1, PATHS, ((61001,), ()))
    hash(spec)


def test_torchrun_is_one_process_per_node() -> None:
    spec = container_spec(work("torchrun"), allocation(), 1, PATHS, ((61001,), ()))
    (process,) = spec.processes
    assert process.ranks == (2, 3)
    words = (
        "--nnodes=2 --node-rank=1 --nproc-per-node=2 --rdzv-id=run-a1-0011-0"
        " --master-addr=10.0.0.0 --master-port=61001 --local-addr=10.0.0.1"
    )
    assert process.command == ("{python}", "-m", "torch.distributed.run", *words.split(), "{folder}/program.py")


def test_the_interpreter_of_an_image_is_none_of_the_node() -> None:
    for path, bare_python in (("/opt/conda/bin/python", None), ("python3", "/mine/python")):
        asked = replace(work(), framework=replace(FRAMEWORK, python=path, bare_python=bare_python))
        spec = container_spec(asked, allocation(), 0, PATHS, PORTS)
        assert (spec.python, spec.bare_python) == (path, bare_python)


def test_an_argument_with_braces_reaches_the_program_as_it_stands() -> None:
    own = replace(FRAMEWORK, own=True, command=("{python}", "{folder}/t.py", "{args.template}", "{args.fast}-{batch_size}"))
    asked = replace(work(each=1), framework=own, cell=document(gpus_per_node=1, args={"template": "{data}/{out}", "fast": True}))
    planned = bare.plan(container_spec(asked, allocation(1), 0, PATHS, PORTS), {})
    assert planned.processes[0].argv == (sys.executable, "/f/t.py", "{data}/{out}", f"true-{asked.cell.batch_size}")


def test_an_allocation_is_told_in_the_words_of_a_framework() -> None:
    asked = replace(work(), framework=replace(FRAMEWORK, env=("tf_config", "paddle")))
    assert [port_names(asked.framework, asked.cell, index) for index in (0, 1)] == [("master", "rank-0", "rank-1"), ("rank-2", "rank-3")]
    env = dict(container_spec(asked, allocation(), 1, PATHS, ((61001, 61002, 61003), (62001, 62002))).processes[1].env)
    endpoints = ["10.0.0.0:61002", "10.0.0.0:61003", "10.0.0.1:62001", "10.0.0.1:62002"]
    assert json.loads(env["TF_CONFIG"]) == {"cluster": {"worker": endpoints}, "task": {"type": "worker", "index": 3}}
    assert env["PADDLE_TRAINER_ENDPOINTS"].split(",") == endpoints
    assert (env["PADDLE_CURRENT_ENDPOINT"], env["PADDLE_MASTER"], env["MASTER_PORT"]) == (endpoints[3], "10.0.0.0:61001", "61001")


def test_sidecars_are_started_before_the_ranks_with_what_they_have_to_know() -> None:
    scheduler = plan.Sidecar(
        name="scheduler", where="head", command=("serve", "{head}:{port.web}", "{address}"), env=(("DMLC_ROLE", "scheduler"),)
    )
    server = plan.Sidecar(name="server", where="each", command=("serve",), env=(("DMLC_ROLE", "server"),), ends="with-ranks")
    framework = replace(FRAMEWORK, env=("dmlc",), sidecars=(scheduler, server))
    asked = replace(work(), framework=framework)
    assert [port_names(framework, asked.cell, index) for index in (0, 1)] == [("master", "port.web"), ()]
    head, other = (bare.plan(container_spec(asked, allocation(), index, PATHS, ((61001, 61002), ())), {}) for index in (0, 1))
    assert [one.name for one in head.processes] == ["sidecar-scheduler-0", "sidecar-server-0", "rank-0", "rank-1"]
    assert [(one.name, one.ranks) for one in other.processes] == [("sidecar-server-1", ()), ("rank-2", (2,)), ("rank-3", (3,))]
    assert head.processes[0].argv == ("serve", "10.0.0.0:61002", "10.0.0.0")
    env = dict(other.processes[0].env)
    assert (env["DMLC_ROLE"], env["DMLC_NUM_SERVER"], env["DMLC_PS_ROOT_PORT"], env["DMLC_NODE_HOST"]) == (
        "server",
        "2",
        "61001",
        "10.0.0.1",
    )
    assert "RANK" not in env
    assert dict(other.processes[1].env)["DMLC_ROLE"] == "worker"


def test_mpirun_starts_ranks_that_wait_for_their_place() -> None:
    asked = replace(
        work("mpirun"), framework=replace(FRAMEWORK, launcher="mpirun", variables=(("OMPI_MCA_btl", "vader,self"),)), secret="s"
    )
    assert [port_names(asked.framework, asked.cell, index) for index in (0, 1)] == [("master", "mpi"), ("mpi",)]
    spec = [container_spec(asked, allocation(), index, PATHS, ((61001, 61002), (61003,))) for index in (0, 1)]
    head, other = (bare.plan(one, {}) for one in spec)
    assert [one.name for one in head.processes] == ["sidecar-orted-0", "sidecar-mpirun-0", "rank-0", "rank-1"]
    assert [(one.name, one.ranks, one.may_end) for one in other.processes][:2] == [("sidecar-orted-1", (), True), ("rank-2", (2,), False)]
    assert other.processes[1].argv[1:] == ("/w/lib/slipway_mpi.py", "hold", sys.executable, "/f/program.py")
    mpirun = head.processes[1]
    started = mpirun.argv[mpirun.argv.index("-H") + 1 :]
    assert started[0] == "slipway-node-0:2,slipway-node-1:2"
    assert not any("/w/" in word for word in started if word != sys.executable), "another node has its files elsewhere"
    env = dict(mpirun.env)
    assert (env["SLIPWAY_MPI_NODES"], env["SLIPWAY_MPI_KEY"]) == ("10.0.0.0:61002 10.0.0.1:61003", "s")
    assert (env["OMPI_MCA_btl"], env["OMPI_MCA_plm"]) == ("vader,self", "rsh")
    assert "SLIPWAY_MPI_KEY" not in dict(head.processes[2].env)


def test_single_runs_on_the_head_only() -> None:
    assert [process.ranks for process in container_spec(work("single", 1), allocation(1), 0, PATHS, PORTS).processes] == [(0,)]
    assert container_spec(work("single", 1), allocation(2), 1, PATHS, PORTS).processes == ()


def test_single_is_one_process_for_all() -> None:
    """It hears how many it stands for; alone it is a rank like any other."""
    (process,) = container_spec(work("single", 2), allocation(2), 0, PATHS, PORTS).processes
    env = dict(process.env)
    assert (process.ranks, env["RANK"], env["SLIPWAY_DRIVES_ALL"]) == ((0,), "0", "1")
    (process,) = container_spec(work("single", 1), allocation(1), 0, PATHS, PORTS).processes
    assert "SLIPWAY_DRIVES_ALL" not in dict(process.env)
    each = plan.Sidecar(name="worker", where="each", command=("x",))
    plan.check_framework(replace(FRAMEWORK, launcher="single", sidecars=(each,)), 2)
    plan.check_framework(replace(FRAMEWORK, launcher="single"), 1)


def test_the_interface_is_told_where_it_is_known() -> None:
    env = dict(container_spec(work(), allocation(interface="ib0"), 0, PATHS, PORTS).env)
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("ib0", "=ib0")
    assert "GLOO_SOCKET_IFNAME" not in dict(container_spec(work(), allocation(), 0, PATHS, PORTS).env)


@pytest.mark.parametrize(
    ("threads", "each", "cores", "expected"), [("auto", 2, 4, 2), ("auto", 3, 4, 1), ("auto", 8, 4, 1), (7, 2, 4, 7), ("auto", 1, 0, 1)]
)
def test_threads_are_the_cell_s_or_the_cores_by_the_processes(threads: Any, each: int, cores: int, expected: int) -> None:
    node = Node(name="n", hostname="h", address="a", cores=tuple(range(cores)))
    assert plan.threads_per_rank(document(threads=threads, gpus_per_node=each), node) == expected


@pytest.mark.parametrize(
    ("changes", "world", "words"),
    [
        ({"launcher": "mpirun", "sidecars": (plan.Sidecar(name="orted", where="head", command=("x",)),)}, 2, "a name of mpirun's own"),
        (
            {"launcher": "single"},
            2,
            r"'f' is one process on the head \(launcher: single\), and the cell asks for 2 nodes, on which",
        ),
        ({"launcher": "torchrun", "env": ("tf_config",)}, 2, "asks for tf_config, and torchrun sets the variables of its ranks itself"),
    ],
)
def test_what_is_not_here_yet_is_refused_by_name(changes: dict[str, Any], world: int, words: str) -> None:
    with pytest.raises(UnsupportedRequest, match=words):
        plan.check_framework(replace(FRAMEWORK, **changes), world)


def test_the_request_knows_the_largest_cell() -> None:
    cell, site = document(gpus_per_node=2, device="site"), made_site(device="cuda", gpus_per_node=4)
    request = plan.allocation_request(cell, [cell, document(nodes=4)], site)
    assert (request.nodes, request.largest_nodes, request.device, request.gres) == (1, 4, "cuda", 2)
    assert plan.allocation_request(document(device="cpu"), [], site).device == "cpu"


@pytest.mark.processes
def test_setup_lines_come_before_the_node_program_and_its_words_stay_words(tmp_path: Path) -> None:
    assert plan.node_argv("py", ("1.2.3.4", 5)) == ("py", "-P", "-m", "workflow.run.node", "--supervisor", "1.2.3.4:5")
    argv = plan.node_argv("echo", ("1.2.3.4", 5), ["export A='x y'", 'echo "$A"'])
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "x y\n-P -m workflow.run.node --supervisor 1.2.3.4:5\n"


def test_cell_json_holds_what_the_allocation_decided() -> None:
    asked = cell(device="site", threads="auto", seed=3)
    model = Model(name="m", variant="v", layers=({"kind": "x"},), parameters=9, macs=1, first_macs=1)
    made = plan.cell_document(Run(cell=asked, repeat=1), 2, allocation(), model)
    decided = {"device": "cpu", "threads": 4, "run_id": "one-r1", "repeat": 1, "attempt": 2, "schema": "slipway.cell/1"}
    network = {"model_layers": ({"kind": "x"},), "model_parameters": 9, "model_variant": "v"}
    assert made.to_json() == {**asked.to_json(), **decided, **network}


def test_a_cell_without_dropout_has_none_in_its_layers() -> None:
    layers = ({"name": "a", "kind": "input", "inputs": []}, {"name": "b", "kind": "dropout", "inputs": ["a"]})
    last = {"name": "c", "kind": "relu", "inputs": ["b"]}
    model = Model(name="m", variant="v", layers=(*layers, last), parameters=0, macs=0, first_macs=0)
    made = {
        dropout: plan.cell_document(Run(cell=cell(dropout=dropout), repeat=1), 1, allocation(), model).model_layers
        for dropout in (True, False)
    }
    assert made == {True: model.layers, False: (layers[0], {**last, "inputs": ["a"]})}


def test_the_build_directory_is_the_one_of_the_build() -> None:
    spec = parse_spec({"source": "synthetic", "samples": 20, "splits": {"test": 0.25}}, Path("/"))
    assert build_name(document(dataset="noise", dataset_spec=spec.to_json())) == f"noise-{spec12(spec)}"


def test_a_framework_is_described_by_name_or_by_folder() -> None:
    named = describe_framework(document(framework="pytorch"), "cpu")
    assert (named.launcher, named.command[0]) == ("ranks", "{python}")
    folder = Path(__file__).parent / "fake"
    assert describe_framework(document(framework=str(folder)), "cpu").folder == str(folder)
    with pytest.raises(UnsupportedRequest, match="precision 'bf16'"):
        describe_framework(document(framework=str(folder), precision="bf16"), "cpu")
    with pytest.raises(UnsupportedRequest, match="model 'lenet5'"):
        describe_framework(document(framework=str(folder), model="lenet5"), "cpu")


def test_the_network_is_that_of_the_dataset_s_images() -> None:
    manifest: Any = SimpleNamespace(name="d", size=(28, 28), channels=1, classes=range(10))
    assert model_for(document(model="lenet"), manifest).parameters == 431080
    assert model_for(document(model="lenet", crop_size=20), manifest).layers[0]["shape_out"] == [1, 20, 20]
    manifest.size = None
    with pytest.raises(UnsupportedRequest, match="dataset 'd' have different sizes"):
        model_for(document(model="lenet"), manifest)


@pytest.mark.processes
@pytest.mark.parametrize("module", ["workflow.run.supervisor", "workflow.run.node", "base.calls"])
def test_what_every_run_starts_starts_light(module: str) -> None:
    heavy = {"pydantic", "yaml", "numpy", "typer", "rich", "blake3", "lmdb", "torch", "polars", "pyarrow", "altair", "scipy", "jinja2"}
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
