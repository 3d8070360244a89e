"""What a container adds to a one-node run: the same cell bare, in a container of Slipway's, and by a plain `docker run` of the same image.

    python -m benchmarks.container_overhead --engine docker [--repeats 7]

Needs the engine and the image of the framework pytorch (`make image`) here. The three take turns on the same cores, with the same cell.json
and the same staged dataset; the image is loaded before the first. The plain run is what a user types at the least: mounts, host network,
the ranks' environment; without a record, a watchdog, limits, a user of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.overhead import STUDY, prepared, seconds
from containers.engines import STORES
from data_prep.build.dataset import build_dataset
from workflow.run.plan import supervisor_argv
from workflow.study.publishing import publish_resolved
from workflow.study.study import Study, load_study

IMAGE = "slipway/pytorch:2.13.0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=list(STORES), default="docker")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bare, boxed = (prepare(Path(name, engine), engine, options.repeats) for engine in ("bare", options.engine))
        images = str(boxed.results_dir / "images-0123456789ab.json")
        pin = [sys.executable, "-m", "workflow.run.images", "--results", str(boxed.results_dir), "--output", images]
        print(f"pin and archive the image: {seconds(pin, dict(os.environ)):.2f} s")
        for study, file in ((bare, None), (boxed, images)):
            slipway(study, 0, file)  # stages the dataset, loads the image
        rows = [
            (slipway(bare, index, None), slipway(boxed, index, images), by_hand(boxed, options.engine, Path(name)))
            for index in range(1, options.repeats + 1)
        ]
        steps = [[record(study, index)["steps_s"] for index in range(1, options.repeats + 1)] for study in (bare, boxed)]
    labels = ("bare", options.engine, f"{options.engine} run")
    for label, column in zip(labels, zip(*rows, strict=True), strict=True):
        print(f"{label:>12}: median {statistics.median(column):.2f} s ({min(column):.2f} to {max(column):.2f})")
    for label, index in (("bare", 0), (f"{options.engine} run", 2)):
        ratio, more = (
            statistics.median(found) for found in zip(*((row[1] / row[index], row[1] - row[index]) for row in rows), strict=True)
        )
        print(f"in a container of Slipway's against {label}: ratio {ratio:.3f}, {more:+.2f} s")
    for label, each in zip(labels, steps, strict=False):
        medians = {step: statistics.median(one[step] or 0.0 for one in each) for step in each[0]}
        print(f"steps of {label}: {', '.join(f'{step} {value:.2f} s' for step, value in medians.items())}")


def prepare(place: Path, engine: str, repeats: int) -> Study:
    """A study with one warm-up and its dataset, in a directory of its own."""
    place.mkdir()
    (place / "study.yaml").write_text(STUDY % (repeats + 1))
    (place / "site.yaml").write_text(f"{{storage: storage, cache: {{path: cache}}, engine: {engine}, scheduler: local}}\n")
    study = load_study(place / "study.yaml", str(place / "site.yaml"))
    publish_resolved(study)
    build_dataset(study.datasets["digits"], "digits", study.datasets_dir, jobs=2)
    return study


def slipway(study: Study, index: int, images: str | None) -> float:
    """Seconds of one run as the rule starts it."""
    run = study.runs[index].run_id
    took = seconds(list(supervisor_argv(sys.executable, str(study.results_dir), run, images=images)), dict(os.environ))
    if record(study, index)["status"] != "ok":
        raise SystemExit(f"{run}: {record(study, index)['status_reason']}")
    return took


def record(study: Study, index: int) -> dict[str, Any]:
    """Of one run."""
    path = study.results_dir / "runs" / study.runs[index].run_id / "record.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def by_hand(study: Study, engine: str, place: Path) -> float:
    """Seconds of the same image and program, with the first run's cell and dataset."""
    attempt, out, lib = prepared(study, place)
    data = next((place / engine / "cache" / "local-0" / "datasets").glob("digits-*"))
    environment = {
        "PYTHONPATH": "/lib-of-slipway",
        "OMP_NUM_THREADS": str(json.loads((attempt / "cell.json").read_text())["threads"]),
        "SLIPWAY_CELL": "/cell.json",
        "SLIPWAY_DATA": "/data",
        "SLIPWAY_LIB": "/lib-of-slipway",
        "SLIPWAY_OUT": "/out",
        "SLIPWAY_NODE_RANK": "0",
        "SLIPWAY_NUM_NODES": "1",
        "SLIPWAY_GPUS_PER_NODE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "61999",
    }
    environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0"}
    argv = [engine, "run", "--rm", "--network", "host", "--entrypoint", "python3"]
    for source, target in ((lib, "/lib-of-slipway"), (attempt / "cell.json", "/cell.json"), (data, "/data"), (out, "/out")):
        argv += ["--volume", f"{source}:{target}"]
    for variable, value in environment.items():
        argv += ["--env", f"{variable}={value}"]
    return seconds([*argv, IMAGE, "/slipway/program/program.py"], dict(os.environ))


if __name__ == "__main__":
    main()
