"""`slipway gpus --explain` in a step of a real job says what a run in the same job gets, on every node."""

import json
import os
from collections.abc import Iterator

import pytest

from cluster.gpus.listing import YES
from tests.minicluster import Cluster
from tests.slurm.test_scheduler import ClusterWorld

pytestmark = pytest.mark.slow
HELD = {"n1": 3, "n2": 1}
"""GPUs that other jobs hold, so that ours are neither the first ones nor the same on both nodes."""


@pytest.fixture
def world(docker_cluster: Cluster) -> Iterator[ClusterWorld]:
    world = ClusterWorld(docker_cluster, f"g{os.getpid()}")
    world.site |= {"device": "cuda", "gpus_per_node": 8}
    yield world
    docker_cluster.exec("login", ["scancel", "--user", "root"])
    world.wait_for(lambda: not docker_cluster.exec("login", ["squeue", "--noheader"]).stdout.strip())
    for node in docker_cluster.nodes:
        docker_cluster.exec(node, ["rm", "-rf", f"/local/{world.path.name}"])


def test_gpus_explain_in_a_step_names_what_the_run_of_the_job_gets(world: ClusterWorld) -> None:
    cluster = world.cluster
    for node, count in HELD.items():
        wrap = ["sbatch", "--parsable", f"--nodelist={node}", f"--gres=gpu:{count}", "--output=/dev/null", "--wrap=exec sleep 600"]
        other = cluster.exec("login", wrap, check=True).stdout.strip()
        world.wait_for(lambda job=other: (found := world.job(job)) is not None and found.state == "running")
    run_id = world.cell(nodes=2, each=2)
    world.cells[0]["device"] = "cuda"
    world.write()
    step = f"srun --overlap --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --mem=0 --output={world.path}"
    lines = (f"{step}/said-%N slipway gpus --explain", f"{step}/json-%N slipway gpus --json", f"exec {world.supervisor(run_id)}")
    job = world.submit(world.script(*lines), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2", "--time=5")
    assert world.ended(job).state == "completed", world.log()
    record = world.record(run_id)
    assert record["status"] == "ok", world.log()
    for node in record["nodes"]:
        name, granted = node["name"], [gpu["uuid"] for gpu in node["gpus"]]
        cards = cluster.gpus(name)
        assert granted == [card.uuid for card in cards[HELD[name] : HELD[name] + 2]], "the next two in the order of the bus"
        said, value = (world.path / f"said-{name}").read_text(), json.loads((world.path / f"json-{name}").read_text())
        assert (value["node"], value["scheduler"], value["granted"], value["refusal"]) == (name, "slurm", granted, None)
        assert [gpu["uuid"] for gpu in value["gpus"] if gpu["granted"]] == granted
        table = [line.split() for line in said.splitlines() if " GPU-" in line and " Tesla " in line]
        assert [row[1] for row in table if row[-2:] == ["yes", "-"]] == granted, said
        assert len(table) == len(cards)
        assert f"SLURM_STEP_GPUS='{HELD[name]},{HELD[name] + 1}'" in said, said
        conclusion = said.splitlines()[-1]
        assert "granted: 2 GPUs: " in conclusion, said
        assert all(uuid in conclusion for uuid in granted), said


STUDY = """
study: {name}
programs:
  sees: {{folder: program, command: [sh, "{{folder}}/sees.sh"], launcher: single, events: none}}
base: {{program: sees, dataset: none, batch_size: 1, gpus_per_node: 1, repeats: 1}}
axes: {{nodes: [1]}}
limits: {{walltime: 5m}}
"""


@pytest.mark.long
def test_a_gpu_that_is_not_well_prevents_the_run_there_and_the_next_job_gets_another_node(world: ClusterWorld) -> None:
    cluster, place = world.cluster, world.cluster.shared / f"unwell{os.getpid()}"
    (place / "program").mkdir(parents=True)
    (place / "program" / "sees.sh").write_text("nvidia-smi -L\n")
    (place / "study.yaml").write_text(STUDY.format(name=place.name))
    (place / "site.yaml").write_text(f"{cluster.site_file.read_text().replace('device: cpu', 'device: cuda')}gpu_health: refuse\n")
    cards = cluster.gpus("n1")
    fault = "retired_pages.pending"
    cluster.exec("n1", ["tee", "/run/nvidia-faults"], input="".join(f"{card.uuid} {fault} Yes\n" for card in cards), check=True)
    try:
        argv = ["slipway", "run", str(place / "study.yaml"), "--site", str(place / "site.yaml")]
        done = cluster.exec("login", argv, cwd=place, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        cluster.exec("n1", ["rm", "/run/nvidia-faults"])
    records = sorted((cluster.shared / "slipway" / "results" / place.name).glob("runs/*/attempts/[!.]*/record.json"))
    first, second = (json.loads(path.read_text()) for path in records)
    assert (first["status"], first["kind"], first["failed_nodes"]) == ("node_lost", "prevented", ["n1"])
    (gpu,) = first["nodes"][0]["gpus"]
    assert gpu["uuid"] in {card.uuid for card in cards}
    for words in ("node n1: GPU ", gpu["uuid"], YES[fault], "gpu_health: refuse"):
        assert words in first["status_reason"]
    assert (second["status"], [node["name"] for node in second["nodes"]]) == ("ok", ["n2"])
    assert "prevented: sees" in done.stderr
    job = cluster.exec("login", ["scontrol", "-o", "show", "job", str(second["job_id"])], check=True).stdout
    assert " ExcNodeList=n1 " in job
