"""Run a framework's program by hand on this machine, on datasets built here: ranks by `ranks` or `mpirun`, and what lives around them."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from containers.frameworks import framework_folders, load_framework
from containers.frameworks.spec import FrameworkSpec
from containers.models import build, build_for_tokens
from containers.rank_variables import RankPosition, fill, rendered, rendered_for_sidecars
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.containers.frameworks.preloaded import Preloaded
from tests.containers.frameworks.programs import Rank, interpreter
from tests.ports import held_ports
from workflow.run.node.workdir import copy_library
from workflow.run.plan import HOLD, Framework, mpi_sidecars, mpi_variables
from workflow.run.plan import LAUNCHER as MPI

TIMEOUT_S = 240
SPECS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"source": "sklearn-digits", "size": 32, "shards": 4, "splits": {"test": 0.2}},
    "photos": {"source": "synthetic", "size": 72, "samples": 96, "classes": 3, "shards": 4, "splits": {"validation": 0.2}},
    "one-batch": {"source": "synthetic", "size": 72, "samples": 20, "classes": 3, "shards": 2, "splits": {"validation": 0.2}},
    "text": {"source": "text", "path": "lines.txt", "sequence_length": 16, "shards": 3},
    "lines": {"source": "text", "path": "lines.txt", "documents": "line", "vocabulary": "words", "buckets": [4, 9], "shards": 4},
    "planes": {
        "source": "synthetic",
        "size": 32,
        "samples": 96,
        "classes": 3,
        "shards": 3,
        "layout": "caffe",
        "splits": {"validation": 0.2},
    },
    "jpegs": {"source": "synthetic", "size": 32, "samples": 96, "classes": 3, "shards": 2, "encoding": "jpeg", "splits": {}},
}


@dataclass(frozen=True)
class Done:
    """What a run of one or more ranks left."""

    exit_codes: list[int]
    events: list[list[dict[str, Any]]]
    stderr: list[str]
    out: Path

    def of(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events[rank] if event["event"] == kind]

    def losses(self) -> list[float]:
        """The loss of every step, mean over ranks."""
        columns = zip(*([step["loss"] for step in self.of("step", rank)] for rank in range(len(self.events))), strict=True)
        return [sum(column) / len(column) for column in columns]


Program = Callable[..., Done]


@pytest.fixture
def world() -> int:
    """The ranks of a run, where a test names no other number. The `world` of tests/containers would repeat each test with every engine."""
    return 1


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The published directory of a dataset of SPECS, built at its first use."""
    root = tmp_path_factory.mktemp("datasets")
    built: dict[str, Path] = {}

    def dataset(name: str) -> Path:
        if name not in built:
            (root / "lines.txt").write_text("".join(f"{'the cat and the dog ' * (n % 3)}sat on mat {n % 10}\n" for n in range(300)))
            built[name] = root / build_dataset(parse_spec(SPECS[name], root), name, root, jobs=1).path
        return built[name]

    return dataset


@pytest.fixture(scope="session")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What programs find of ours on their path."""
    directory = tmp_path_factory.mktemp("lib")
    copy_library(directory, [str(folder) for name in framework_folders() for folder in load_framework(name).library_folders])
    return directory


@pytest.fixture
def run_program(tmp_path: Path, datasets: Callable[[str], Path], lib: Path) -> Program:
    """run_program(world=1, data="digits", framework="pytorch", **keys of the cell) -> Done. `limit_bytes` bounds the address space of each
    rank; `variables` are added to its environment; `watch(ranks, out)` is called while they run, and ends them if it likes."""
    return program_in(tmp_path, datasets, lib)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, datasets: Callable[[str], Path], lib: Path) -> Program:
    """reference(world=1, data="digits", **keys of the cell) -> Done of PyTorch, to compare others with. Equal calls share one run."""
    run = program_in(tmp_path_factory.mktemp("reference"), datasets, lib)
    known: dict[str, Done] = {}

    def done(*place: Any, **keys: Any) -> Done:
        name = json.dumps([place, keys], sort_keys=True)
        if name not in known:
            known[name] = run(*place, **keys)
        return known[name]

    return done


def program_in(place: Path, datasets: Callable[[str], Path], lib: Path) -> Program:
    """Return what run_program is, for runs whose directories lie in `place`."""

    def run(
        world: int = 1,
        data: str = "digits",
        framework: str = "pytorch",
        limit_bytes: int | None = None,
        variables: Mapping[str, str] | None = None,
        watch: Callable[[Sequence[Rank], Path], None] = lambda _ranks, _out: None,
        **keys: Any,
    ) -> Done:
        out = place / f"out-{len(list(place.iterdir()))}"
        out.mkdir()
        (out / "cell.json").write_text(json.dumps(make_cell(datasets(data), world, **keys)))
        spec = load_framework(framework)
        port, *endpoints = held_ports(1 + world)

        def limit() -> None:
            if limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

        environments = [
            {
                **environment(out, datasets(data), lib, rank, world, port),
                **rendered(spec.env, place_of(spec, rank, port, endpoints)),
                **(variables or {}),
            }
            for rank in range(world)
        ]
        (out / "environments.json").write_text(json.dumps(environments))
        words = {
            "python": interpreter(framework, keys.get("strategy", "ddp"), keys.get("backend", "auto")),
            "folder": str(spec.folder),
            "lib": str(lib),
            "head": "127.0.0.1",
            "address": "127.0.0.1",
            "port.spark": str(*held_ports()),
        }
        with sidecars(spec, environments[0], place_of(spec, 0, port, endpoints), words):
            hold = HOLD if spec.launcher == MPI else ()
            argv = [fill(word, words) for word in (*hold, *spec.command)]
            ranks: Sequence[Rank] = [
                Preloaded(argv, env, out)
                if argv[0] == sys.executable and framework == "pytorch" and limit_bytes is None
                else subprocess.Popen(argv, env=env, cwd=out, stderr=subprocess.PIPE, text=True, preexec_fn=limit, start_new_session=True)
                for env in environments
            ]
            watch(ranks, out)
            stderr = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
        files = [out / f"events-{rank}.jsonl" for rank in range(world)]
        events = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        return Done([rank.returncode for rank in ranks], events, stderr, out)

    return run


def make_cell(root: Path, world: int, model: str = "lenet", global_batch_size: int = 32, **keys: Any) -> dict[str, Any]:
    """cell.json for a dataset in `root`; `keys` override."""
    manifest = json.loads((root / "manifest.json").read_text())
    if "vocabulary" in manifest:
        network = build_for_tokens(model, manifest["vocabulary"], manifest["lengths"][-1])
    else:
        height, width = [keys["crop_size"]] * 2 if keys.get("crop_size") else manifest["size"]
        network = build(model, manifest["channels"], (height, width), len(manifest["classes"]))
    defaults = {
        "schema": "slipway.cell/1",
        "framework": "pytorch",
        "mode": "train",
        "model": model,
        "batch_size": global_batch_size // world,
        "global_batch_size": global_batch_size,
        "nodes": 1,
        "gpus_per_node": world,
        "precision": "fp32",
        "layout": "nchw",
        "comm_hook": "none",
        "strategy": "ddp",
        "backend": "auto",
        "device": "cpu",
        "threads": 1,
        "seed": 0,
        "optimizer": {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0},
        "steps": {"warmup": 2, "measured": 3},
        "epochs": None,
        "save_parameters": True,
        "model_layers": list(network.layers),
        "model_parameters": network.parameters,
        "model_variant": network.variant,
    }
    return {**defaults, **keys}


@contextlib.contextmanager
def sidecars(spec: FrameworkSpec, rank_env: Mapping[str, str], place: RankPosition, words: Mapping[str, str]) -> Iterator[None]:
    """What lives around the ranks, in the environment of rank 0 but for what is a rank's own. Ended with them."""
    env = {name: value for name, value in rank_env.items() if name not in rendered(spec.env, place)}
    env |= {**rendered_for_sidecars(spec.env, place), "SLIPWAY_NODE_RANK": "0"}
    started = [(one.command, {name: str(value) for name, value in one.env.items()}) for one in spec.sidecars]
    if spec.launcher == MPI:
        framework = Framework(name=spec.name, folder=str(spec.folder), launcher=spec.launcher, command=spec.command)
        of_mpi = mpi_variables(framework, [("127.0.0.1", *held_ports())], None, "11" * 32, crowded=False)
        started += [(one.command, of_mpi) for one in mpi_sidecars(1, place.local_size)]
    with contextlib.ExitStack() as ended:
        for command, own in started:
            argv = [fill(word, words) for word in command]
            process = subprocess.Popen(argv, env={**env, **own}, cwd=env["SLIPWAY_OUT"], start_new_session=True)
            ended.callback(process.wait)
            ended.callback(os.killpg, process.pid, signal.SIGKILL)  # not waited for yet: the number is still its own
        yield


def place_of(spec: FrameworkSpec, rank: int, port: int, endpoints: list[int]) -> RankPosition:
    """All ranks on one node, which is this machine."""
    return RankPosition(
        rank=rank,
        local_rank=rank,
        local_size=len(endpoints),
        node_rank=0,
        nodes=1,
        address="127.0.0.1",
        interface=None,
        device="cpu",
        master=("127.0.0.1", port),
        endpoints=tuple(("127.0.0.1", endpoint) for endpoint in endpoints),
        servers=sum(one.env.get("DMLC_ROLE") == "server" for one in spec.sidecars),
    )


def environment(out: Path, data: Path, lib: Path, rank: int, world: int, port: int) -> dict[str, str]:
    """The variables of one rank, and little else."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(lib),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "SLIPWAY_CELL": str(out / "cell.json"),
        "SLIPWAY_DATA": str(data),
        "SLIPWAY_LIB": str(lib),
        "SLIPWAY_OUT": str(out),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
