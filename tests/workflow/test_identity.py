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


def test_no_command_executes_what_lies_where_the_user_is(checkout: Checkout, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("base", "json", "workflow"):
        (mine / f"{name}.py").write_text(f"open({str(tmp_path)!r} + '/executed', 'a').write({name!r})\nraise SystemExit(9)\n")
    before = len(checkout.started())
    checkout.snakemake("--config", "retry=failed", "--directory", str(mine))
    assert len(checkout.started()) == before + 1
    assert not (tmp_path / "executed").exists()


def test_an_edited_rule_a_touched_manifest_and_no_memory_of_snakemake_run_nothing(checkout: Checkout) -> None:
    rules = checkout.root / "workflow" / "rules" / "run.smk"
    rules.write_text(rules.read_text().replace("{PY} workflow.run.supervisor", "true; {PY} workflow.run.supervisor"))
    assert checkout.planned() == 0
    for name in ("manifest.json", "dataset.json"):
        for path in checkout.results.parents[1].rglob(name):
            path.touch()
    assert checkout.planned() == 0
    shutil.rmtree(checkout.root / ".snakemake")
    assert (checkout.planned(), checkout.planned("--config", "retry=failed")) == (0, 1)


def test_storage_that_was_copied_without_its_times_builds_nothing(checkout: Checkout) -> None:
    for age, name in enumerate(("plan.json", "shard-*.json", "dataset.json")):  # each is younger than what was made from it
        for path in checkout.results.parents[1].rglob(f".build/*/{name}"):
            os.utime(path, (time.time() - age,) * 2)
    assert not re.search(r"^dataset", checkout.snakemake("-n"), re.MULTILINE)


def test_one_axis_value_more_runs_the_new_cells_only(checkout: Checkout) -> None:
    checkout.study.write_text(STUDY.replace("nodes: [1, 2]", "nodes: [1, 2, 4]"))
    adopt = ("--config", "adopt=yes")  # the file is a copy of the one that made the results, and asks for other cells
    assert checkout.planned(*adopt) == 1
    checkout.snakemake(*adopt)
    assert len(checkout.started()) == 3
    assert checkout.planned() == 0


def test_limits_baseline_and_repeats_change_no_run(checkout: Checkout) -> None:
    checkout.study.write_text(STUDY.replace("baseline: {nodes: 1}", "baseline: {nodes: 2}\nlimits: {walltime: 20m}"))
    assert checkout.planned() == 0
    checkout.study.write_text(STUDY.replace("repeats: 1", "repeats: 2"))
    assert checkout.planned() == 2


def test_failed_runs_run_again_when_asked_and_only_then(checkout: Checkout) -> None:
    assert checkout.planned("--config", "retry=failed") == 1
    checkout.snakemake("--config", "retry=failed")
    (record,) = [json.loads(path.read_text()) for path in checkout.results.glob("runs/*-n2-*/record.json")]
    assert (record["status"], record["result_number"]) == ("error", 2)
    assert checkout.planned() == 0
    assert checkout.planned("--config", "retry=failed") == 1


def test_another_checkout_s_retry_runs_nothing_here(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Checkout(tmp_path / "other", checkout.results.parents[1])
    assert other.planned() == 0
    assert other.planned("--config", "retry=failed") == 1
    other.snakemake("--config", "retry=failed")
    assert len(checkout.started()) == 3
    assert (checkout.planned(), other.planned()) == (0, 0)
    assert checkout.planned("--config", "retry=failed") == 1
    checkout.snakemake("--config", "retry=failed")
    assert [checkout.planned(), other.planned(), len(checkout.started())] == [0, 0, 4]


@pytest.mark.parametrize(
    "options",
    [
        ("-F",),
        ("--forcerun", "stage_train_push"),
        ("--rerun-incomplete",),
        ("--rerun-triggers", "code", "input", "mtime", "params", "software-env"),
    ],
    ids=["all forced", "the rule forced", "incomplete again", "all triggers"],
)
def test_whatever_is_typed_no_finished_run_is_started_and_no_record_goes(checkout: Checkout, options: tuple[str, ...]) -> None:
    before = {path: path.read_bytes() for path in checkout.results.glob("runs/*/record.json")}
    rules = checkout.root / "workflow" / "rules" / "run.smk"
    rules.write_text(rules.read_text().replace("{PY} workflow.run.supervisor", "true; {PY} workflow.run.supervisor"))
    checkout.snakemake(*options)
    assert len(checkout.started()) == 2
    assert {path: path.read_bytes() for path in checkout.results.glob("runs/*/record.json")} == before


@pytest.mark.parametrize(
    "words",
    [
        ("--cores", "2", "--until", "stage_train_push"),
        ("--cores", "2", "--until", "stage_train_push", "-F"),
        ("--cores", "2", "-R", "stage_train_push", "--until", "stage_train_push"),
        ("--cores", "2", "--touch"),
        ("--cores", "2", "--delete-all-output"),
        ("--profile", "profiles/local", "--delete-all-output"),
        ("--cores", "2", "--cleanup-metadata", "RECORD"),
    ],
    ids=["no profile", "forced", "the rule forced", "touched", "outputs deleted", "deleted with profile", "metadata gone"],
)
def test_without_our_profile_no_finished_run_is_started_and_no_record_goes(checkout: Checkout, words: tuple[str, ...]) -> None:
    before, dataset = checkout.records(), checkout.dataset()
    done = checkout.typed(*(str(next(iter(before))) if word == "RECORD" else word for word in words))
    assert done.returncode == 0 or words[-1] in ("--touch", "RECORD"), done.stdout + done.stderr
    assert checkout.records() == before
    assert "--touch" in words or checkout.dataset() == dataset, "it is neither built again nor removed"
    assert len(checkout.started()) == 2
    assert checkout.planned() == 0


def test_a_retry_that_is_cut_off_leaves_the_record_of_before(checkout: Checkout) -> None:
    supervisor = checkout.root / "workflow" / "run" / "supervisor" / "__main__.py"
    supervisor.write_text("raise SystemExit(23)")
    (failed,) = checkout.results.glob("runs/*-n2-*/record.json")
    before = failed.read_bytes()
    assert checkout.snakemake_fails("--config", "retry=failed")
    assert failed.read_bytes() == before
    assert checkout.planned() == 0


def test_a_removed_record_runs_that_run(checkout: Checkout) -> None:
    next(checkout.results.glob("runs/*/record.json")).unlink()
    assert checkout.planned() == 1


def test_finished_runs_are_in_snakemakes_graph_and_report(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout.typed("--profile", "profiles/local").returncode == 0
    shutil.rmtree(checkout.root / ".snakemake")
    drawn = checkout.typed("--profile", "profiles/local", "--dag").stdout
    assert len(re.findall(r'label = "stage_train_push', drawn)) == 2
    assert len(re.findall(r'label = "dataset_shard', drawn)) == 2, "each run comes from its dataset"
    page = tmp_path / "snakemake.html"
    assert checkout.typed("--profile", "profiles/local", "--report", str(page)).returncode == 0
    assert "stage_train_push" in page.read_text()


def test_a_dry_run_of_few_runs_fits_on_a_screen(checkout: Checkout) -> None:
    checkout.study.write_text(STUDY.replace("repeats: 1", "repeats: 2").replace("nodes: [1, 2]", "nodes: [1, 2, 3]"))
    shown = checkout.typed("--profile", "profiles/local", "-n", "--config", "adopt=yes")
    runs = re.findall(r"^Job \d+: run .*$", shown.stdout, re.MULTILINE)
    assert len(runs) == 4
    assert max(map(len, runs)) <= 140
    assert len((shown.stdout + shown.stderr).splitlines()) <= 45 + 2 * len(runs)
