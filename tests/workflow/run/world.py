"""A small world for the supervisor: storage with a staged-able dataset and a study.json, runs of the fake framework, eyes on processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from base.jsonfile import publish_json
from cluster import processes
from data_prep.manifest import manifest_digest
from tests.data_prep.reader.small import image_dataset
from tests.minicluster.processes import read
from tests.workflow.run.cells import cell
from workflow.run.storage.description import build_name
from workflow.run.storage.results import parse_requested
from workflow.study.cell import Cell

ROOT = Path(__file__).parents[3]
FAKE = Path(__file__).parent / "fake"
PATIENCE_S = 240.0
HELD_STEPS = 200
"""So many steps before its end a run waits that is to be held: fake/program.py."""

SPEC = {"source": "synthetic", "samples": 4, "size": [28, 28]}


class World:
    """Everything below one directory, which also marks our processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = path / "storage"
        self.results = self.storage / "results" / "test-study"
        self.cache = path / "cache"
        self.cells: list[dict[str, Any]] = []
        self.limits: dict[str, Any] = {"walltime_s": 120.0, "gpu_hours": None, "init_s": 30.0}
        self.shorter: dict[str, float] = {}
        """Fields of AttemptLimits, for supervisors that start from now on."""
        self.job_s: float | None = None
        """After how long the jobs of these supervisors end."""
        self.addresses: list[str] | None = None
        """Those of the nodes of these supervisors, where a network is to connect them."""
        self.site: dict[str, Any] = {
            "name": "here",
            "storage": str(self.storage),
            "cache": {"path": str(self.cache), "max_bytes": None},
            "engine": "bare",
            "scheduler": "local",
            "device": "cpu",
            "deadline_margin_s": 120.0,
            "setup": [],
            "shared": "user",
            "directives": [],
            "storage_limit": None,
        }
        self.dataset = image_dataset(
            self.storage / "datasets",
            [(np.full((28, 28, 1), label, np.uint8), label % 2) for label in range(8)],
            name="tiny",
            test_shards=1,
        )
        self.repeats = 1
        self.started: list[subprocess.Popen[str]] = []
        self.images: Path | None = None
        """What the rule `image` has written."""

    def cell(self, nodes: int = 1, each: int = 1, *, measured: int = 6, **fake: Any) -> str:
        """A cell of the fake framework with one repeat; its run's id."""
        of_fake = cell(
            cell_id=f"fake-{len(self.cells)}",
            framework=str(FAKE),
            dataset="tiny",
            dataset_spec=SPEC,
            batch_size=2,
            global_batch_size=2 * nodes * each,
            nodes=nodes,
            gpus_per_node=each,
            threads="auto",
            optimizer={"name": "sgd", "fake": fake},
            steps={"warmup": 2, "measured": measured},
            save_parameters=True,
        )
        self.cells.append(of_fake.to_json())
        self.write()
        return f"{of_fake.cell_id}-r1"

    def held(self, nodes: int = 1, **fake: Any) -> str:
        """A cell whose run waits in its third step until `go_on`, however slow this machine is, and is soon over then; its run's id."""
        return self.cell(nodes, measured=HELD_STEPS, step_s=0.02, hurry=str(self.path / "hurry"), **fake)

    def go_on(self) -> None:
        (self.path / "hurry").touch()

    def write(self) -> None:
        """study.json and the dataset's receipt."""
        manifest = json.loads((self.dataset / "manifest.json").read_text())
        digest = manifest_digest(self.dataset)
        receipt = {"name": "tiny", "digest": digest, "path": self.dataset.name, "samples": manifest["samples"], "bytes": manifest["bytes"]}
        if self.cells:
            target = self.storage / "datasets" / ".build" / build_name(Cell.from_json(self.cells[0])) / "dataset.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            publish_json(target, receipt)
        self.results.mkdir(parents=True, exist_ok=True)
        content = {
            "schema": "slipway.study/1",
            "study": "test-study",
            "baseline": {},
            "limits": self.limits,
            "site": self.site if self.job_s is None else {**self.site, "walltime_s": self.job_s},
            "cells": self.cells,
            "repeats": self.repeats,
            "runs": [
                {"run_id": f"{cell['cell_id']}-r{repeat}", "cell_id": cell["cell_id"], "repeat": repeat}
                for repeat in range(1, self.repeats + 1)
                for cell in self.cells
            ],
            "history": [],
        }
        publish_json(self.results / "study.json", content)

    def image_argv(self) -> list[str]:
        """The command of the rule `image`; supervisors that start from now on are told of its file."""
        self.images = self.results / "images-0123456789ab.json"
        return [sys.executable, "-m", "workflow.run.images", "--results", str(self.results), "--output", str(self.images)]

    def argv(self, asked: str) -> list[str]:
        """The command of the rule `stage_train_push`: any result of a run, or with `.after-N` a later one."""
        program = ["workflow.run.supervisor"]
        if self.shorter or self.job_s is not None or self.addresses is not None:
            changed = {"limits": self.shorter, "job_s": self.job_s, "addresses": self.addresses}
            program = ["tests.workflow.run.supervised", json.dumps(changed)]
        argv = [sys.executable, "-m", *program, "--results", str(self.results), "--run", asked]
        return argv if self.images is None else [*argv, "--images", str(self.images)]

    def start(self, run_id: str) -> subprocess.Popen[str]:
        """A supervisor, as the rule starts it."""
        return self.start_by(self.argv(run_id))

    def in_training(self, run_id: str, steps: int = 1, rank: int = 0) -> subprocess.Popen[str]:
        """A supervisor whose rank has written more than so many steps."""
        process = self.start(run_id)
        self.wait_for(lambda: self.steps(run_id, rank) > steps or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        return process

    def start_by(self, argv: list[str]) -> subprocess.Popen[str]:
        """A supervisor that this command starts."""
        env = {**os.environ, "SLIPWAY_TEST_WORLD": str(self.path)}
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.started.append(process)
        return process

    def start_as_the_rule(self, run_id: str, log: Path) -> subprocess.Popen[bytes]:
        """With its log appended to."""
        argv = [*self.argv(run_id), "--log", str(log)]
        env = {**os.environ, "SLIPWAY_TEST_WORLD": str(self.path)}
        with log.open("ab") as stream:
            return subprocess.Popen(argv, cwd=ROOT, env=env, stderr=stream, start_new_session=True)

    def run(self, run_id: str) -> tuple[int, str]:
        """Exit code and log of one supervisor, run to its end."""
        process = self.start(run_id)
        _, log = process.communicate(timeout=PATIENCE_S)
        return process.returncode, log

    def ends(self, run_id: str, code: int = 0) -> str:
        """The log of one supervisor, run to its end with this exit code."""
        return self.end_of(self.start(run_id), code)

    def end_of(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """The log of a supervisor that was started, which ends with this exit code."""
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, f"exit code {process.returncode}: {log}"
        return log

    def run_dir(self, asked: str) -> Path:
        return self.results / "runs" / parse_requested(asked)[0]

    def record(self, run_id: str, attempt: int | None = None) -> dict[str, Any]:
        """The record of the run, or of one attempt."""
        directory = self.run_dir(run_id) if attempt is None else self.run_dir(run_id) / "attempts" / str(attempt)
        value: dict[str, Any] = json.loads((directory / "record.json").read_text())
        return value

    def processes(self) -> list[int]:
        """Living processes that name this world in their command line or environment."""
        mark = str(self.path).encode()
        found = []
        for state in processes.all_processes():
            if state.pid == os.getpid() or state.state in "ZX":
                continue
            try:
                text = Path(f"/proc/{state.pid}/cmdline").read_bytes() + Path(f"/proc/{state.pid}/environ").read_bytes()
            except OSError:
                continue
            if mark in text:
                found.append(state.pid)
        return found

    def pids(self, word: str) -> list[int]:
        """Living processes of this world with `word` in their command line."""
        return [pid for pid in self.processes() if word.encode() in read(pid, "cmdline")]

    def node_program(self, index: int) -> int:
        """The living one of this node, and not a child that it has forked."""
        return min(pid for pid in self.pids("workflow.run.node") if f"--node\0{index}\0".encode() in read(pid, "cmdline"))

    def wait_for(self, condition: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
        """The first true value of `condition`; fails after the limit. For things that nothing signals to a test, such as /proc."""
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing came of {condition} within {limit_s:g} s")
            time.sleep(0.02)
        return value

    def steps(self, run_id: str, rank: int = 0) -> int:
        """How many lines the rank of the running attempt has written."""
        paths = list(self.cache.glob(f"local-*/runs/{run_id}-a*/out/events-{rank}.jsonl"))
        return sum(path.read_bytes().count(b'"step",') for path in paths)

    def left(self) -> list[str]:
        """What must not be there when all is over: processes, leases, work directories, parts."""
        found = [f"process {pid}" for pid in self.processes()]
        patterns = [
            "cache/local-*/leases/*/*.json",
            "cache/local-*/runs/*",
            "storage/**/.*.part-*",
            "storage/**/.lease-after-*",
            "storage/**/lease.json",
        ]
        for pattern in patterns:
            found += [str(path) for path in self.path.glob(pattern)]
        return found

    def close(self) -> None:
        """End what a failed test left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # one that was about to end has done so
                os.kill(pid, signal.SIGKILL)
