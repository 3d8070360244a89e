"""Studies through LSF as their user types them, by the LSF of our tests (tests/cluster/fake_lsf): both ways, and what ends or hinders runs.
What a real look-alike does, tests/schedulers tries."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from base.errors import RecordError
from tests.cluster.fake_lsf import FakeLsf
from tests.minicluster.studies import IN_THE_RUN, tables

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0
NO_RESULT = RecordError.exit_code
PROGRAM = """\
import pathlib, sys
import slipway_events
run = slipway_events.start()
place, name = pathlib.Path(sys.argv[1]), sys.argv[2]
for batch in run.steps([[1, 2]], samples=len):
    if (place / f"may-{name}").exists():
        (place / f"begun-{name}").touch()
        (place / f"may-{name}").read_text()  # a pipe
"""
STUDY = """\
study: {name}
programs:
  small:
    folder: train
    command: ["{{python}}", "{{folder}}/train.py", "{place}", "{{batch_size}}"]
    launcher: ranks
    python: {python}
base:
  {{program: small, dataset: none, gpus_per_node: 1, repeats: 1, steps: {{warmup: 1, measured: 3}}}}
axes: {axes}
baseline: {{nodes: 1}}
limits: {{walltime: {walltime}, init: 2m}}
"""
SITE = """\
storage: {place}/storage
cache: {{path: $TMPDIR/slipway}}
scheduler: lsf
queue: normal
engine: bare
device: cpu
cpus_per_node: 1
deadline_margin: 5s
"""


class Place:
    """A user's directory, a site file and an LSF."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lsf = FakeLsf(hosts=dict.fromkeys((f"127.0.1.{number}" for number in range(1, 5)), 1))
        (path / "train").mkdir()
        (path / "train" / "train.py").write_text(PROGRAM)
        (path / "site.yaml").write_text(SITE.format(place=path))
        self.held: dict[str, int] = {}

    def hold(self, *names: str) -> None:
        """Programs of these batch sizes wait at their steps."""
        for name in names:
            os.mkfifo(pipe := self.path / f"may-{name}")
            self.held[name] = os.open(pipe, os.O_RDWR)

    def let_go(self, name: str) -> None:
        """From now on they do not."""
        (free := self.path / "free").touch()
        free.replace(self.path / f"may-{name}")
        os.close(self.held.pop(name))

    def job(self, name: str) -> str:
        """The id of the job of the run with that batch size."""
        listed = self.lsf.run("bjobs", "-noheader", "-o", "jobid job_name").stdout.splitlines()
        (found,) = (line.split()[0] for line in listed if f"-b{name}-" in line)
        return found

    def study(self, name: str, axes: str, walltime: str = "10m") -> Path:
        """Where its results will be."""
        text = STUDY.format(name=name, axes=axes, walltime=walltime, place=self.path, python=sys.executable)
        (self.path / f"{name}.yaml").write_text(text)
        return self.path / "storage" / "results" / name

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "workflow.commands.main", *words, "--site", str(self.path / "site.yaml")]
        environ = self.lsf.environ | {"PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, cwd=self.path, env=environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)

    def slipway(self, *words: str) -> str:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, out + err
        return out

    def check_nothing_left(self, results: Path) -> None:
        """Of no job a process, of no run a lease or half a file."""
        wait_for(lambda: not self.lsf.left())
        assert [path for path in results.rglob("*") if path.name.startswith((".lease", "lease")) or ".part-" in path.name] == []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for name in list(place.held):
        place.let_go(name)
    place.lsf.close()


def wait_for(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def records(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Of each run, by its batch size: those of its attempts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(results.glob("runs/*/attempts/[!.]*/record.json")):
        record = json.loads(path.read_text())
        found.setdefault(str(record["cell"]["batch_size"]), []).append(record)
    return found


def test_both_ways_of_a_study_give_the_same_tables(place: Place) -> None:
    found = []
    for name, words in (("perjob", ("run",)), ("alljob", ("submit", "--wait"))):
        results = place.study(name, "{nodes: [1, 2], batch_size: [1]}")
        place.slipway(words[0], f"{name}.yaml", *words[1:])
        of_name = records(results)["1"]
        assert [(record["status"], record["scheduler"]) for record in of_name] == [("ok", "lsf")] * 2
        for record in of_name:
            steps = record["steps_s"]
            assert sum(steps[step] for step in IN_THE_RUN) == pytest.approx(record["run_s"], rel=0.01)
            assert steps["assign"] >= 0
        assert sorted(len({node["name"] for node in record["nodes"]}) for record in of_name) == [1, 2]
        place.check_nothing_left(results)
        found.append(tables(results))
    assert found[0]
    assert found[0] == found[1]


SILENT, KILLED, REQUEUED, LIMITED = NAMES = ("1", "2", "3", "4")


def test_what_ends_or_hinders_a_run(place: Place) -> None:
    """At once: LSF is silent while a run ends, then one run is killed, one is put back into the queue, and of one LSF's limit is reached,
    before our clock has said so, as of a job on a host that LSF takes for fast."""
    results = place.study("faults", f"{{batch_size: [{', '.join(NAMES)}]}}")
    place.hold(*NAMES)
    with place.start("run", "faults.yaml") as process:
        wait_for(lambda: process.poll() is not None or all((place.path / f"begun-{name}").exists() for name in NAMES))
        jobs = {name: place.job(name) for name in NAMES}
        place.lsf.silence()
        place.let_go(SILENT)
        wait_for(lambda: SILENT in records(results))
        place.lsf.speak()
        place.lsf.run("bkill", jobs[KILLED])
        place.lsf.run("brequeue", jobs[REQUEUED])
        place.lsf.reach_limit(jobs[LIMITED])
        wait_for(lambda: set(NAMES) <= set(records(results)))
        for name in NAMES[1:]:
            place.let_go(name)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == NO_RESULT, out + err
    ends = {name: [(record["status"], record["status_reason"] or "") for record in found] for name, found in records(results).items()}
    assert {name: [status for status, _ in found] for name, found in ends.items()} == {
        SILENT: ["ok"],
        KILLED: ["cancelled"],
        REQUEUED: ["preempted", "ok"],
        LIMITED: ["timeout"],
    }, (ends, out + err)
    assert ends[KILLED][0][1].endswith("got SIGINT: the job was cancelled")
    assert ends[REQUEUED][0][1].endswith("got SIGINT: the job was put back into the queue")
    assert ends[LIMITED][0][1] == "the supervisor got SIGUSR2: the job reached its time limit before our clock did; nothing could be saved"
    place.check_nothing_left(results)
