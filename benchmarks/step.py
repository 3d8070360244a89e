"""What our program adds to a training step: its median step time against that of bare_torchrun.py, same network, data and batches.

    python -m benchmarks.step [--batch 64] [--world 1] [--steps 120] [--repeats 5]

The two take turns on the same cores, so that what else the machine does hits both; the ratio is that of each pair, and the median pair
counts. Aim: 0.99 to 1.01, or less.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from containers.frameworks import load_framework
from containers.models import build
from containers.renderings import fill
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from workflow.run.node.workdir import copy_library

ROOT = Path(__file__).parents[1]
WARMUP = 20


def main() -> None:
    """Print one line per pair and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 64), ("world", 1), ("steps", 120), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "lib").mkdir()
        copy_library(work / "lib")
        spec = parse_spec({"source": "sklearn-digits", "size": 32, "shards": 2, "splits": {}}, work)
        data = work / build_dataset(spec, "digits", work, jobs=1).path
        ratios, quiet = [], []
        for pair in range(options.repeats):
            turns = [("ours", ours), ("bare", bare)]
            times = {name: sorted(run(work, data, options)) for name, run in (turns if pair % 2 == 0 else turns[::-1])}
            medians = {name: statistics.median(steps) for name, steps in times.items()}
            ratios.append(medians["ours"] / medians["bare"])
            quiet.append(tenth(times["ours"]) / tenth(times["bare"]))
            shown = ", ".join(f"{name} {medians[name] * 1e3:.2f} ms" for name in ("ours", "bare"))
            print(f"pair {pair + 1}: {shown}, ratio of medians {ratios[-1]:.4f}, of 10th percentiles {quiet[-1]:.4f}", flush=True)
    print(f"ratio of medians {spread(ratios)}; of 10th percentiles, where other load counts less, {spread(quiet)}")


def tenth(ordered: list[float]) -> float:
    """The 10th percentile of sorted values."""
    return ordered[len(ordered) // 10]


def spread(ratios: list[float]) -> str:
    """Median and range over the pairs."""
    return f"{statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f}, {len(ratios)} pairs)"


def ours(work: Path, data: Path, options: argparse.Namespace) -> list[float]:
    """Seconds of the steps of rank 0 under our program, launcher `ranks`."""
    (work / "cell.json").write_text(json.dumps(cell(options)))
    spec = load_framework("pytorch")
    argv = [fill(word, {"python": sys.executable, "folder": str(spec.folder)}) for word in spec.command]
    places = {"SLIPWAY_CELL": work / "cell.json", "SLIPWAY_DATA": data, "SLIPWAY_LIB": work / "lib", "SLIPWAY_OUT": work}
    base = {**environment(work), **{name: str(path) for name, path in places.items()}, "MASTER_ADDR": "127.0.0.1"}
    base["MASTER_PORT"] = str(free_port())
    sizes = {"WORLD_SIZE": str(options.world), "LOCAL_WORLD_SIZE": str(options.world)}
    ranks = [subprocess.Popen(argv, env={**base, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(options.world)]
    if any([rank.wait() for rank in ranks]):
        sys.exit("our program failed")
    events = map(json.loads, (work / "events-0.jsonl").read_text().splitlines())
    return [event["seconds"] for event in events if event["event"] == "step" and event["measured"]]


def bare(work: Path, data: Path, options: argparse.Namespace) -> list[float]:
    """The same under torchrun."""
    times = work / "times.json"
    script = [str(ROOT / "benchmarks" / "bare_torchrun.py"), str(data), str(options.batch), str(options.steps + WARMUP), "1", str(times)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={options.world}", f"--master_port={free_port()}"]
    subprocess.run([*torchrun, *script], env=environment(work), check=True)
    found: list[float] = json.loads(times.read_text())
    return found[WARMUP:]


def cell(options: argparse.Namespace) -> dict[str, Any]:
    """cell.json of the run."""
    model = build("lenet", 1, (32, 32), 10)
    return {
        **{"mode": "train", "model": "lenet", "precision": "fp32", "layout": "nchw", "comm_hook": "none", "device": "cpu"},
        **{"strategy": "ddp", "threads": 1, "seed": 0, "epochs": None, "save_parameters": False},
        "batch_size": options.batch,
        "global_batch_size": options.batch * options.world,
        "optimizer": {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0},
        "steps": {"warmup": WARMUP, "measured": options.steps},
        "model_layers": list(model.layers),
        "model_parameters": model.parameters,
        "model_variant": model.variant,
    }


def environment(work: Path) -> dict[str, str]:
    """What both programs get."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(work / "lib"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
