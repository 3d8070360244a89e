"""Whole studies in containers on a real cluster, through Snakemake: the frameworks of Slipway, and programs of a study."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from containers.labels import TAG
from tests import images
from tests.minicluster import Cluster
from tests.slurm.test_profiles import ROOMS
from tests.workflow.run.test_mpirun import TRAIN as MPI_TRAIN
from tests.workflow.run.test_sidecars import SERVE
from tests.workflow.run.test_sidecars import TRAIN as SERVED_TRAIN
from tests.workflow.run.world import ROOT
from workflow.run.record.model import validate_record

pytestmark = [pytest.mark.slow, pytest.mark.long]

FRAMEWORKS = ("pytorch", "jax", "tensorflow", "keras")
STUDY = """
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 32, splits: {{test: 0.2}}, shards: 2}}
base: {{dataset: digits, model: lenet, layout: nhwc, global_batch_size: 32, steps: {{warmup: 2, measured: 10}}, repeats: 1}}
axes: {{framework: [pytorch, jax, tensorflow, keras], nodes: [1, 2]}}
baseline: {{nodes: 1}}
limits: {{walltime: 10m, init: 180s}}
"""
PROGRAMS = """
study: {name}
datasets:
  digits: {{source: sklearn-digits}}
programs:
  classifier:
    folder: ddp
    image: slipway/pytorch:2.13.0
    command: ["{{python}}", "{{folder}}/train.py", "--data", "{{data}}", "--width", "64", "--batch-size", "{{batch_size}}"]
  mpi:
    folder: mpi
    image: {mpi}
    launcher: mpirun
    command: ["{{python}}", "{{folder}}/train.py", work]
  served:
    folder: served
    image: {base}
    launcher: ranks
    command: ["{{python}}", "{{folder}}/train.py", "{{head}}", "{{port.echo}}", needs]
    sidecars:
      - {{name: server, where: head, command: ["{{python}}", "{{folder}}/serve.py", answer, "{{head}}", "{{port.echo}}"]}}
      - {{name: waiter, where: each, command: ["{{python}}", "{{folder}}/serve.py", wait]}}
base: {{batch_size: 2, nodes: 2, steps: {{warmup: 2, measured: 10}}, repeats: 1}}
include:
  - {{program: classifier, dataset: digits, batch_size: 32}}
  - {{program: mpi}}
  - {{program: served}}
limits: {{walltime: 10m, init: 180s}}
"""


class Place:
    """A checkout on the cluster's shared storage, with one study that runs in an engine, or in none (`bare`)."""

    def __init__(self, cluster: Cluster, engine: str, name: str, study: str) -> None:
        self.cluster, self.engine, self.name = cluster, engine, f"{name}-{engine}"
        self.root = cluster.shared / f"checkout-{self.name}"
        self.root.mkdir()
        shutil.copy(ROOT / "Snakefile", self.root)
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.root / room, ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "study.yaml").write_text(study.format(name=self.name, mpi=images.MPI, base=images.BASE))
        (self.root / "site.yaml").write_text(cluster.site_file.read_text().replace("engine: bare", f"engine: {engine}"))
        self.results = cluster.shared / "slipway" / "results" / self.name

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """On the login node, with the checkout's own modules."""
        words = [sys.executable, "-m", *argv]
        return self.cluster.exec("login", words, cwd=self.root, env={"PYTHONPATH": str(self.root)}, timeout=1800)

    def snakemake(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = ["--profile", "profiles/slurm", "--configfile", "study.yaml", "--config", "site=./site.yaml"]
        return self.command("snakemake", *argv, *words)

    def records(self) -> list[dict[str, Any]]:
        """Of runs that all ended well, after which no container of theirs is left on any node."""
        done = self.snakemake()
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        records = [json.loads(path.read_text()) for path in self.results.glob("runs/*/record.json")]
        for record in records:
            validate_record(record)
            assert (record["status"], record["status_reason"], record["engine"]) == ("ok", None, self.engine)
        assert "rule image" not in self.snakemake("-n").stdout
        for node in self.cluster.nodes if self.engine != "bare" else ():
            argv = [self.engine, "ps", "--all", "--quiet", "--filter", f"label={TAG}"]
            assert self.cluster.exec(node, argv, timeout=60).stdout == ""
        return records

    def events(self, record: dict[str, Any], rank: int) -> list[dict[str, Any]]:
        attempt = self.results / "runs" / record["run_id"] / "attempts" / str(record["attempt"])
        (path,) = attempt.rglob(f"events-{rank}.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_frameworks_train_the_same_network_in_their_images(docker_cluster: Cluster, engine: str) -> None:
    """Real training. The images are on the login node, as `make image` leaves them."""
    if why := images.framework_missing_here(*FRAMEWORKS):
        pytest.skip(why)
    for name in FRAMEWORKS:
        docker_cluster.load_image(images.framework_image(name), "login", engine=engine)
    place = Place(docker_cluster, engine, "frameworks", STUDY)
    records = place.records()
    found = sorted((record["cell"]["framework"], len(record["nodes"])) for record in records)
    assert found == [(name, nodes) for name in sorted(FRAMEWORKS) for nodes in (1, 2)]
    pins = json.loads(next(place.results.glob("images-*.json")).read_text())["images"]
    for record in records:
        pinned = pins[record["cell"]["framework"]]["image"]
        assert (record["provenance"]["image_id"], record["provenance"]["image_digest"]) == (pinned["image_id"], pinned["digest"])
    compared = place.command("workflow.commands.main", "check-frameworks", "study.yaml", "--site", "./site.yaml")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    ends = [place.events(record, rank)[-1] for record in records for rank in range(record["world_size"])]
    assert {end["event"] for end in ends} == {"run_stop"}
    assert [end["norm"] for end in ends] == pytest.approx([ends[0]["norm"]] * 12, rel=1e-5)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_programs_of_a_study_by_torchrun_mpirun_and_with_sidecars(docker_cluster: Cluster, engine: str) -> None:
    if why := images.framework_missing_here("pytorch") or images.mpi_missing_here():
        pytest.skip(why)
    for archive in (images.framework_image("pytorch"), images.mpi_image(), images.base_image()):
        docker_cluster.load_image(archive, "login", engine=engine)
    place = Place(docker_cluster, engine, "programs", PROGRAMS)
    shutil.copytree(ROOT / "examples" / "ddp" / "train", place.root / "ddp")
    for folder, files in (("mpi", {"train.py": MPI_TRAIN}), ("served", {"train.py": SERVED_TRAIN, "serve.py": SERVE})):
        (place.root / folder).mkdir()
        for name, text in files.items():
            Path(place.root, folder, name).write_text(text)
    records = {record["cell"]["framework"]: record for record in place.records()}
    assert {name: len(record["nodes"]) for name, record in records.items()} == {"classifier": 2, "mpi": 2, "served": 2}
    assert records["mpi"]["training"]["losses"][0] == [0, 0 + 1]
