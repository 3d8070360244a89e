"""The real PyTorch program under the launcher torchrun, on two nodes of this machine with addresses of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import ROOT, World

pytestmark = pytest.mark.slow


def framework(tmp_path: Path, launcher: str) -> Path:
    """A copy of the PyTorch folder with another launcher."""
    folder = tmp_path / launcher / "pytorch"
    shutil.copytree(ROOT / "containers" / "frameworks" / "pytorch", folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "framework.yaml").read_text()
    assert "launcher: ranks" in text
    (folder / "framework.yaml").write_text(text.replace("launcher: ranks", f"launcher: {launcher}"))
    return folder


def cell(world: World, folder: Path) -> str:
    world.addresses = ["127.0.0.2", "127.0.0.3"]
    run_id = world.cell(2, 2, measured=20)
    optimizer = {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0}
    changes = {"framework": str(folder), "optimizer": optimizer, "batch_size": 1, "global_batch_size": 4, "threads": 1}
    world.cells[-1].update(changes)
    world.write()
    return run_id


def test_torchrun_and_ranks_give_the_same_training(world: World, tmp_path: Path) -> None:
    datasets = world.storage / "datasets"
    spec = parse_spec({"source": "synthetic", "samples": 64, "classes": 4, "size": 28, "channels": "grey"}, datasets)
    world.dataset = datasets / build_dataset(spec, "tiny", datasets, jobs=1).path
    records = {}
    for launcher in ("torchrun", "ranks"):
        run_id = cell(world, framework(tmp_path, launcher))
        records[launcher] = record = ended(world, run_id)
        assert (record["status"], record["status_reason"]) == ("ok", None)
        assert record["performance"]["num_measured_steps"] == 20
        assert record["performance"]["window_steps_ratio"] == pytest.approx(1, abs=0.1)
        assert record["world_size"] == 4
        logs = {file["path"] for file in record["files"] if file["path"].startswith("logs/rank")}
        expected = {"logs/rank-0-1.log", "logs/rank-2-3.log"} if launcher == "torchrun" else {f"logs/rank-{rank}.log" for rank in range(4)}
        assert logs == expected
    first, second = (records[launcher]["training"] for launcher in ("torchrun", "ranks"))
    assert first["losses"] == second["losses"]
    assert first["parameter_norm"] == second["parameter_norm"]


def test_the_options_are_those_of_this_torch() -> None:
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--help"], capture_output=True, text=True, check=True)
    for option in ("--rdzv-id", "--local-addr", "--master-addr", "--master-port", "--node-rank", "--nproc-per-node", "--no-python"):
        assert option in done.stdout
