"""Runs side by side on one node, each in a job of its own with a share of the node's GPUs (`share_nodes: true`): no GPU is in two of them.

In a submission (`slipway submit`) runs take whole nodes of their one job, whatever the site says, so there is nothing to tell apart there:
tests/slurm/test_scheduler.py has runs side by side in one job.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from containers.spec import PIDS, TAG
from tests import images
from tests.checkout import copy_checkout
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import FAKE

pytestmark = pytest.mark.slow

SITE = """
storage: {shared}/{name}
cache: {{path: /local/{name}}}
scheduler: slurm
engine: {engine}
images: {{pytorch: {image}}}
queue: main
device: cuda
gpus_per_node: 8
cpus_per_node: 8
memory_per_node: 4000MB
deadline_margin: 20s
share_nodes: true
directives: ["--nodelist=n1"]
"""
STUDY = """
study: {name}
datasets:
  noise: {{source: synthetic, samples: 40, size: 28, channels: grey, shards: 2}}
base: {{dataset: noise, model: lenet, batch_size: 2, gpus_per_node: 4, steps: {{warmup: 1, measured: 2}}, repeats: 2}}
axes: {{nodes: [1]}}
baseline: {{nodes: 1}}
limits: {{walltime: 10m, init: 300s}}
"""
LOOK = """
import json, os, subprocess, time
from pathlib import Path
seen = {"smi": subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout}
limits = [Path("/sys/fs/cgroup", name) for name in ("memory/memory.limit_in_bytes", "memory.max")]
seen["memory"] = [path.read_text().strip() for path in limits if path.exists()]
seen["cores"] = sorted(os.sched_getaffinity(0))
seen |= {"environ": os.environ["CUDA_VISIBLE_DEVICES"], "job": os.environ["SLIPWAY_ATTEMPT"]}
part = Path(os.environ["SLIPWAY_OUT"], f".seen-{os.environ['RANK']}")
part.write_text(json.dumps(seen))
part.rename(Path(os.environ["SLIPWAY_OUT"], f"seen-{os.environ['RANK']}.json"))
while not Path(os.environ["SLIPWAY_STOP"]).with_name("go").exists():
    time.sleep(0.2)
"""
SHARE = 4_000_000_000 // 2 >> 20 << 20  # of the memory, in whole MB as Slurm is asked for it
PATIENCE_S = 240.0


def checkout(cluster: Cluster, name: str, engine: str) -> Path:
    """On shared storage, with the fake framework in the place of PyTorch's: its ranks tell what they see, and go on when they may."""
    root = Path(cluster.shared) / f"checkout-{name}"
    root.mkdir()
    copy_checkout(root)
    folder = root / "containers" / "frameworks" / "pytorch"
    (folder / "framework.yaml").write_text((FAKE / "framework.yaml").read_text().replace("name: fake", "name: pytorch"))
    (folder / "program.py").write_text(LOOK + (FAKE / "program.py").read_text())
    (root / "study.yaml").write_text(STUDY.format(name=name))
    (root / "site.yaml").write_text(SITE.format(shared=cluster.shared, name=name, engine=engine, image=images.BASE))
    return root


def looks(cluster: Cluster, name: str) -> dict[str, list[str]]:
    """Runs that have told on n1 what they see -> the files of their ranks; those that are over have no work directory any more."""
    told = cluster.exec("n1", ["find", f"/local/{name}/runs", "-name", "seen-?.json"]).stdout.split()
    found: dict[str, list[str]] = {}
    for path in told:
        found.setdefault(path.split("/")[4], []).append(path)
    return {run: paths for run, paths in found.items() if len(paths) == 4}


@pytest.mark.parametrize("engine", ["docker", pytest.param("podman", marks=pytest.mark.long)])
def test_runs_side_by_side_on_one_node_never_see_the_same_gpu(docker_cluster: Cluster, engine: str) -> None:
    cluster, name = docker_cluster, f"shared-{engine}"
    if engine == "podman":
        cluster.load_image(images.base_image(), "login", engine=engine)
    root = checkout(cluster, name, engine)
    argv = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", "--configfile", "study.yaml", "--config", "site=./site.yaml"]
    options = ["--until", "stage_train_push"]
    with (root / "log").open("w") as log:
        streams = {"stdout": log, "stderr": log}
        snakemake = cluster.popen("login", [*argv, *options], cwd=root, env={"PYTHONPATH": str(root)}, **streams)

    def side_by_side() -> bool:
        assert snakemake.poll() is None, (root / "log").read_text()[-6000:]
        return len(looks(cluster, name)) == 2

    try:
        wait_until(side_by_side, PATIENCE_S, "two runs are in their containers on n1")
        held = cluster.exec("n1", [engine, "ps", "--quiet", "--filter", f"label={TAG}"]).stdout.split()
        assert len(held) == 2
        asked = cluster.exec("n1", [engine, "inspect", "--format", "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}", *held])
        assert asked.stdout.splitlines() == [f"{SHARE} {PIDS}"] * 2
        seen = {
            run: [json.loads(cluster.exec("n1", ["cat", path]).stdout) for path in paths] for run, paths in looks(cluster, name).items()
        }
        let_go: set[str] = set()

        def over() -> bool:
            for run in looks(cluster, name).keys() - let_go:
                let_go.add(run)
                cluster.exec("n1", ["touch", f"/local/{name}/runs/{run}/resume/go"], check=True)
            return snakemake.poll() is not None

        wait_until(over, PATIENCE_S, "all runs are over")
        assert snakemake.returncode == 0, (root / "log").read_text()[-6000:]
    finally:
        if snakemake.poll() is None:
            snakemake.terminate()
            snakemake.wait(60)
        cluster.exec("login", ["scancel", "--user", "root"])
    check_records(cluster, cluster.shared / name / "results" / name, engine, seen)
    assert cluster.exec("n1", [engine, "ps", "--all", "--quiet", "--filter", f"label={TAG}"]).stdout == ""


def check_records(cluster: Cluster, results: Path, engine: str, side_by_side: dict[str, list[dict[str, Any]]]) -> None:
    """Grant, container and program say the same of every run, and no two that ran side by side say the same GPU."""
    cards = {card.uuid for card in cluster.gpus("n1")}
    records = {path.parent.name: json.loads(path.read_text()) for path in results.glob("runs/*/record.json")}
    assert len(records) == 2
    of_tag = {}
    for run_id, record in records.items():
        validate_record(record)
        assert (record["status"], record["engine"], record["exclusive"]) == ("ok", engine, False)
        (node,) = record["nodes"]
        granted = [gpu["uuid"] for gpu in node["gpus"]]
        assert len(granted) == 4
        assert set(granted) <= cards
        assert sorted(node["gpus_seen"]) == sorted(granted)
        told = [json.loads(path.read_text()) for path in (results / "runs" / run_id).glob("attempts/1/seen-?.json")]
        assert len(told) == 4
        for look in told:
            assert look["environ"].split(",") == granted
            assert look["memory"] == [str(SHARE)], "half of the node's, as the job was granted"
            assert look["cores"] == node["cores"]
            assert [line.split("UUID: ")[1].rstrip(")") for line in look["smi"].splitlines()] == node["gpus_seen"]
        of_tag[told[0]["job"]] = set(granted)
    first, second = (of_tag[run] for run in side_by_side)
    assert first.isdisjoint(second)
    assert first | second == cards
    spans = sorted((record["time"]["start"], record["time"]["end"]) for record in records.values())
    assert spans[1][0] < spans[0][1], "two at the same time"
