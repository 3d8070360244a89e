"""What Slipway adds to a one-node run: the supervisor's command, from start to published record, against the same program by torchrun.

    python -m benchmarks.overhead [--repeats 7]

Three ways take turns on the same cores with the same cell.json and the same staged dataset: Slipway (lease, stage, launch, beats, hashes,
push, record), `torchrun --nproc_per_node 1 program.py`, and `python program.py` with the ranks' environment, which is what Slipway starts.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from containers.frameworks import load_framework
from containers.rank_variables import fill
from data_prep.build.dataset import build_dataset
from workflow.run.node.workdir import copy_library
from workflow.run.plan import supervisor_argv
from workflow.study.publishing import publish_resolved
from workflow.study.study import Study, load_study

ROOT = Path(__file__).parents[1]
STUDY = """
study: overhead
datasets:
  digits: {source: sklearn-digits, size: 32, shards: 2, splits: {}}
base: {dataset: digits, model: lenet, batch_size: 32, steps: {warmup: 5, measured: 20}, save_parameters: false, repeats: %d}
axes: {nodes: [1]}
baseline: {nodes: 1}
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "study.yaml").write_text(STUDY % (repeats + 1))
        (place / "site.yaml").write_text("{storage: storage, cache: {path: cache}, engine: bare, scheduler: local}\n")
        study = load_study(place / "study.yaml", str(place / "site.yaml"))
        publish_resolved(study)
        build_dataset(study.datasets["digits"], "digits", study.datasets_dir, jobs=2)
        slipway(study, 0)  # stages the dataset, fills the page cache
        rows = [
            (slipway(study, index), by_hand(study, place, "torchrun"), by_hand(study, place, "ranks")) for index in range(1, repeats + 1)
        ]
    for label, column in zip(("Slipway", "torchrun", "program alone"), zip(*rows, strict=True), strict=True):
        print(f"{label:>14}: median {statistics.median(column):.2f} s ({min(column):.2f} to {max(column):.2f})")
    for label, index in (("torchrun", 1), ("the program alone", 2)):
        print(f"Slipway adds {statistics.median(row[0] - row[index] for row in rows):+.2f} s to {label}")


def slipway(study: Study, index: int) -> float:
    """Seconds of one run as the rule starts it."""
    return seconds(list(supervisor_argv(sys.executable, str(study.results_dir), study.runs[index].run_id)), dict(os.environ))


def by_hand(study: Study, place: Path, way: str) -> float:
    """Seconds of the same program with the first run's cell and dataset."""
    attempt, out, lib = prepared(study, place)
    threads = str(json.loads((attempt / "cell.json").read_text())["threads"])
    data = next((place / "cache" / "local-0" / "datasets").glob("digits-*"))
    environment = {**os.environ, "PYTHONPATH": str(lib), "OMP_NUM_THREADS": threads, "SLIPWAY_CELL": str(attempt / "cell.json")}
    environment |= {"SLIPWAY_DATA": str(data), "SLIPWAY_LIB": str(lib), "SLIPWAY_OUT": str(out), "SLIPWAY_NODE_RANK": "0"}
    environment |= {"SLIPWAY_NUM_NODES": "1", "SLIPWAY_GPUS_PER_NODE": "1"}
    spec = load_framework("pytorch")
    program = [fill(word, {"python": sys.executable, "folder": str(spec.folder)}) for word in spec.command]
    if way == "torchrun":
        return seconds([str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc_per_node", "1", *program[1:]], environment)
    environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
    return seconds(program, environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "61999"})


def prepared(study: Study, place: Path) -> tuple[Path, Path, Path]:
    """The first run's attempt, an empty directory for results, and one with the reader."""
    out, lib = place / "out", place / "lib"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if not lib.exists():
        lib.mkdir()
        copy_library(lib)
    return study.results_dir / "runs" / study.runs[0].run_id / "attempts" / "1", out, lib


def seconds(argv: list[str], environment: dict[str, str]) -> float:
    """Wall time of a command, which must succeed."""
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
