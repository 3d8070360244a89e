"""A run is its cell: what re-runs, and what does not. Real Snakemake, real dataset, a supervisor that only writes a record."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkout import copy_checkout

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

SUPERVISOR = """
import argparse, json, os
from pathlib import Path
from base.seal import publish_sealed
from workflow.run.record.step_clock import login_s
from workflow.run.storage.results import parse_requested
from workflow.run.builder import failed, make_record
from workflow.study.publishing import find_run, read_resolved
parser = argparse.ArgumentParser()
parser.add_argument("--results", type=Path)
parser.add_argument("--run")
parser.add_argument("--log")
arguments = parser.parse_args()
arguments.run, after = parse_requested(arguments.run)
status = "error" if "-n2-" in arguments.run else "ok"
make = make_record if status == "ok" else failed
run = find_run(read_resolved(arguments.results), arguments.run)
run_dir = arguments.results / "runs" / arguments.run
if (run_dir / "record.json").exists() and json.loads((run_dir / "record.json").read_text())["result_number"] > after:
    raise SystemExit(0)  # as the supervisor does: the requested result is on storage
record = make(run.cell.to_json(), run.repeat, status=status, result_number=after + 1, study=arguments.results.name)
record["steps_s"]["login"] = login_s(os.environ)
run_dir.mkdir(parents=True, exist_ok=True)
publish_sealed(run_dir / "record.json", record)
with (arguments.results / "started").open("a") as log:
    print(arguments.run, file=log)
"""

STUDY = """
study: identity
datasets:
  noise: {source: synthetic, samples: 40, size: 32, channels: grey, shards: 2}
base: {framework: pytorch, dataset: noise, batch_size: 8, steps: {warmup: 1, measured: 2}, repeats: 1}
axes:
  model: [lenet]
  nodes: [1, 2]
baseline: {nodes: 1}
"""


class Checkout:
    """A copy of the checkout whose supervisor writes a record and nothing else. `storage`: of another checkout, to be shared."""

    def __init__(self, place: Path, storage: Path | None = None) -> None:
        self.root = place / "checkout"
        self.root.mkdir()
        if storage is not None:
            (place / "storage").symlink_to(storage)
        copy_checkout(self.root)
        (self.root / "workflow" / "run" / "supervisor" / "__main__.py").write_text(SUPERVISOR)
        shutil.copy(ROOT / "tests" / "workflow" / "report" / "builder.py", self.root / "workflow" / "run")
        self.study = place / "study.yaml"
        self.study.write_text(STUDY)
        self.results = place / "storage" / "results" / "identity"

    def snakemake(self, *options: str) -> str:
        done = self._run(*options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def snakemake_fails(self, *options: str) -> bool:
        return self._run(*options).returncode == 1

    def _run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.typed("--profile", "profiles/local", "--until", "stage_train_push", *options)

    def typed(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`snakemake --configfile STUDY` and these words, nothing else."""
        argv = [str(Path(sys.executable).parent / "snakemake"), "--configfile", str(self.study), *words]
        return subprocess.run(argv, cwd=self.root, capture_output=True, text=True, check=False, timeout=300)

    def records(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.results.glob("runs/*/record.json")}

    def dataset(self) -> dict[Path, int]:
        """When each file of the dataset's build was made."""
        files = (self.results.parents[1] / "datasets" / ".build").glob("*/*.json")
        return {path: path.stat().st_mtime_ns for path in files}

    def planned(self, *options: str) -> int:
        found = re.search(r"^stage_train_push\s+(\d+)$", self.snakemake("-n", *options), re.MULTILINE)
        return int(found.group(1)) if found else 0

    def started(self) -> list[str]:
        return (self.results / "started").read_text().split()


@pytest.fixture(scope="module")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("identity")
    checkout = Checkout(place)
    assert checkout.planned() == 2
    checkout.snakemake()
    assert len(checkout.started()) == 2
    return place


@pytest.fixture
def checkout(_finished: Path, tmp_path: Path) -> Checkout:
    """A fresh copy of a checkout that has finished its study; file times are kept."""
    shutil.rmtree(tmp_path)
    shutil.copytree(_finished, tmp_path, symlinks=True)
    copy = Checkout.__new__(Checkout)
    copy.root = tmp_path / "checkout"
    copy.study = tmp_path / "study.yaml"
    copy.results = tmp_path / "storage" / "results" / "identity"
    return copy


def test_snakemake_gains_no_thread_with_each_run(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.study.write_text(STUDY.replace("repeats: 1", "repeats: 3"))
    count = """
with (arguments.results / "threads").open("a") as file:
    print(len(os.listdir(f"/proc/{os.getppid()}/task")), file=file)
"""
    (checkout.root / "workflow" / "run" / "supervisor" / "__main__.py").write_text(SUPERVISOR + count)
    checkout.snakemake()
    threads = [int(line) for line in (checkout.results / "threads").read_text().split()]
    assert len(threads) == 6
    assert max(threads[1:]) <= threads[0] + 1, "its pool may have one more"


def edit_rule(checkout: Checkout) -> None:
    rules = checkout.root / "workflow" / "rules" / "run.smk"
    rules.write_text(rules.read_text().replace("{PY} workflow.run.supervisor", "true; {PY} workflow.run.supervisor"))


def test_what_runs_follows_from_cells_and_results_alone(checkout: Checkout) -> None:
    edit_rule(checkout)
    assert checkout.planned() == 0, "an edited rule"
    storage = checkout.results.parents[1]
    for age, name in enumerate(("manifest.json", "plan.json", "shard-*.json", "dataset.json")):  # each younger than what was made from it
        for path in storage.rglob(name):
            os.utime(path, (time.time() - age / 100,) * 2)  # and younger than the receipts
    planned = re.findall(r"^(?:dataset|stage_train_push).*", checkout.snakemake("-n"), re.MULTILINE)
    assert planned == [], "storage that was copied without its times"
    checkout.study.write_text(STUDY.replace("baseline: {nodes: 1}", "baseline: {nodes: 2}\nlimits: {walltime: 20m}"))
    assert checkout.planned() == 0, "another baseline and limit"
    shutil.rmtree(checkout.root / ".snakemake")
    assert (checkout.planned(), checkout.planned("--config", "retry=failed")) == (0, 1), "no memory of Snakemake"

    next(checkout.results.glob("runs/*/record.json")).unlink()
    checkout.study.write_text(STUDY.replace("repeats: 1", "repeats: 2").replace("nodes: [1, 2]", "nodes: [1, 2, 3]"))
    shown = checkout.typed("--profile", "profiles/local", "-n", "--config", "adopt=yes")
    runs = re.findall(r"^Job \d+: run .*$", shown.stdout, re.MULTILINE)
    assert len(runs) == 5, "a run whose record was removed, those of one node more, and the second repeats"
    assert max(map(len, runs)) <= 140
    assert len((shown.stdout + shown.stderr).splitlines()) <= 45 + 2 * len(runs), "it fits on a screen"


def test_one_axis_value_more_runs_the_new_cells_only(checkout: Checkout) -> None:
    checkout.study.write_text(STUDY.replace("nodes: [1, 2]", "nodes: [1, 2, 4]"))
    adopt = ("--config", "adopt=yes")  # the file is a copy of the one that made the results, and asks for other cells
    assert checkout.planned(*adopt) == 1
    checkout.snakemake(*adopt)
    assert len(checkout.started()) == 3
    assert checkout.planned() == 0


def test_a_failed_run_runs_again_when_asked_and_only_then(checkout: Checkout, tmp_path: Path) -> None:
    retry = ("--config", "retry=failed")
    supervisor = checkout.root / "workflow" / "run" / "supervisor" / "__main__.py"
    supervisor.write_text("raise SystemExit(23)")
    (failed,) = checkout.results.glob("runs/*-n2-*/record.json")
    before = failed.read_bytes()
    assert checkout.snakemake_fails(*retry)
    assert failed.read_bytes() == before, "a retry that is cut off leaves the record"
    supervisor.write_text(SUPERVISOR)

    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("base", "json", "workflow"):
        (mine / f"{name}.py").write_text(f"open({str(tmp_path)!r} + '/executed', 'a').write({name!r})\nraise SystemExit(9)\n")
    checkout.snakemake(*retry, "--directory", str(mine))
    assert len(checkout.started()) == 3
    assert not (tmp_path / "executed").exists(), "no command executes what lies where the user is"
    record = json.loads(failed.read_text())
    assert (record["status"], record["result_number"]) == ("error", 2)

    (tmp_path / "other").mkdir()
    other = Checkout(tmp_path / "other", checkout.results.parents[1])
    assert (other.planned(), other.planned(*retry)) == (0, 1), "another checkout with the same storage"
    other.snakemake(*retry)
    assert len(checkout.started()) == 4
    assert (checkout.planned(), checkout.planned(*retry)) == (0, 1), "the other one's retry asks for nothing here, and ends nothing"
    checkout.snakemake(*retry)
    assert (other.planned(), len(checkout.started())) == (0, 5)


@pytest.mark.parametrize(
    "words",
    [
        ("--cores", "2", "--until", "stage_train_push", "--rerun-incomplete"),
        ("--cores", "2", "--until", "stage_train_push", "-F"),
        ("--cores", "2", "-R", "stage_train_push", "--until", "stage_train_push"),
        ("--cores", "2", "--touch"),
        ("--cores", "2", "--delete-all-output"),
        ("--cores", "2", "--cleanup-metadata", "RECORD"),
    ],
    ids=["all triggers", "forced", "the rule forced", "touched", "outputs deleted", "metadata gone"],
)
def test_whatever_is_typed_no_finished_run_is_started_and_no_record_goes(checkout: Checkout, words: tuple[str, ...]) -> None:
    """Without our profile, which protects them too, and with an edited rule."""
    before, dataset = checkout.records(), checkout.dataset()
    edit_rule(checkout)
    done = checkout.typed(*(str(next(iter(before))) if word == "RECORD" else word for word in words))
    assert done.returncode == 0 or words[-1] in ("--touch", "RECORD"), done.stdout + done.stderr
    assert checkout.records() == before
    assert "--touch" in words or checkout.dataset() == dataset, "it is neither built again nor removed"
    assert len(checkout.started()) == 2
    assert checkout.planned() == 0
