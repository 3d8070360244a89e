"""Records and studies made by hand, valid by the contract, for tests and benchmarks of the report."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from base.seal import sealed_text
from workflow.report import cells as report_cells
from workflow.report.analysis import Analysis, analyse
from workflow.report.cells import CellResult, LogSample
from workflow.report.collect import collect
from workflow.report.formats import to_csv
from workflow.report.table_type import Table
from workflow.study.cell import Cell

DATASET: dict[str, Any] = {
    "source": "sklearn-digits",
    "encoding": "raw",
    "size": [32, 32],
    "resize": "squash",
    "channels": "grey",
    "splits": {"test": 0.1},
    "per_class": {"min": 1, "max": None},
    "shards": 4,
    "layout": "hwc",
}
CPU = "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz"
GPU = "NVIDIA H100 80GB HBM3"
PARTS = {
    **{"input": 0.05, "copy": 0.0, "forward": 0.25, "backward": 0.5, "exposed": 0.1, "skew": 0.02, "optimizer": 0.05, "other": 0.04},
    "step": 1.01,
}
WHAT_IF = {"step": 1.01, "no_input": 0.96, "no_copy": 1.01, "no_exposed": 0.91, "no_skew": 0.99, "no_other": 0.97}
"""Both in median steps."""


def make_cell(**keys: Any) -> dict[str, Any]:
    """A cell as study.json holds it; give `batch_size` (per process) or `global_batch_size`."""
    cell: dict[str, Any] = {
        "framework": "pytorch", "mode": "train", "model": "lenet", "dataset": "digits", "dataset_spec": DATASET,
        "nodes": 1, "gpus_per_node": 1, "precision": "fp32", "layout": "nchw", "comm_hook": "none", "device": "cpu", "threads": "auto",
        "seed": 0, "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0},
        "steps": {"warmup": 10, "measured": 200}, "epochs": None, "save_parameters": True,
        **keys,
    }  # fmt: skip
    world = cell["nodes"] * cell["gpus_per_node"]
    if "global_batch_size" in cell:
        cell["batch_size"] = cell["global_batch_size"] // world
    cell.setdefault("batch_size", 32)
    cell["global_batch_size"] = cell["batch_size"] * world
    digest = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:8]
    words = [cell["model"], cell["dataset"], f"b{cell['batch_size']}", f"n{cell['nodes']}", f"g{cell['gpus_per_node']}"]
    return {**cell, "cell_id": f"{'-'.join(words)}-{digest}"}


def make_record(cell: Mapping[str, Any], repeat: int = 1, *, step_s: float = 0.1, attempt: int = 1, **changes: Any) -> dict[str, Any]:
    """An `ok` record whose median step is `step_s`. `changes` are dotted paths, such as {"performance.drift_ratio": 0.05}."""
    world = cell["nodes"] * cell["gpus_per_node"]
    gpus = [{"uuid": f"GPU-{index:04d}", "model": GPU} for index in range(cell["gpus_per_node"])] if cell["device"] == "cuda" else []
    steps_s = {"login": 0.4, "assign": 1.5, "stage": 2.0, "train": 215 * step_s + 3, "result": 0.2, "push": 0.6, "release": 0.1}
    run_s = sum(seconds for step, seconds in steps_s.items() if step not in ("login", "assign"))
    shape = {"p50": 1.0, "p90": 1.04, "p95": 1.06, "p99": 1.15, "mean": 1.01, "stdev": 0.03, "mad": 0.01, "min": 0.97, "max": 1.3}
    measured = (cell["steps"] or {}).get("measured", 200)
    steps = {key: step_s * factor for key, factor in shape.items()}
    record: dict[str, Any] = {
        "schema": "slipway.run/1", "run_id": f"{cell['cell_id']}-r{repeat}", "study": "digits-scaling", "cell": dict(cell),
        "repeat": repeat, "attempt": attempt, "result_number": 1, "status": "ok",
        "kind": "result", "status_reason": None, "failed_rank": None,
        "time": {"start": f"2026-05-0{1 + repeat % 7}T10:00:00Z", "end": f"2026-05-0{1 + repeat % 7}T10:05:00Z"},
        "run_s": run_s, "steps_s": steps_s,
        "scheduler": "local", "scheduler_version": None, "job_id": "1234", "restart_count": 0, "site": "local", "engine": "bare",
        "exclusive": True, "oversubscribed": False,
        "nodes": [
            {"name": f"local-{index}", "hostname": f"node{index:02d}", "cores": [2 * index, 2 * index + 1], "gpus": gpus, "cpu_model": CPU,
             "machine_cores": {"sockets": 2, "cores": 40, "cpus": 80}, "memory_bytes": 188 << 30,
             "network": [{"name": "mlx5_0:1", "kind": "InfiniBand", "mbit_per_s": 100_000}],
             "stage": {"bytes": 1_900_000, "copied_bytes": 0, "hit": True, "seconds": 0.1}}
            for index in range(cell["nodes"])
        ],
        "world_size": world, "device": cell["device"] if cell["device"] != "site" else "cpu", "threads_per_rank": 2,
        "preflight": None,
        "window_seen": None,
        "resumed_from": None,
        "checkpoint": None,
        "performance": {
            "num_measured_steps": measured, "num_warmup_steps": 10, "step_s": {"n": measured, **steps},
            "input_wait_s_mean": 0.05 * step_s, "first_step_s": 3 * step_s, "window_s": measured * step_s,
            "samples": measured * cell["global_batch_size"], "rate_to_median_ratio": 1.0, "uneven_cause": None,
            "window_steps_ratio": 0.9998,
            "samples_per_s": cell["global_batch_size"] / step_s, "samples_per_s_per_gpu": cell["batch_size"] / step_s,
            "rank_skew_p95_ratio": 1.02, "straggler_rank": 0, "drift_ratio": 1.004,
            "drift": drift_of(0.004, 0.006) if measured >= 100 else None,
            "parts": {f"{name}_s": share * step_s for name, share in PARTS.items()},
            "what_if": {f"{name}_s": share * step_s for name, share in WHAT_IF.items()} | {"slow_part": "compute"},
        },
        "training": {
            "final_loss": 0.2, "first_loss": 2.3, "losses": [[step, 0.2 + 2.1 * 0.98**step] for step in range(0, 210, 2)],
            "eval": {"split": "test", "loss": 0.25, "accuracy": 0.94, "samples": 180}, "parameters": 61_706, "parameter_norm": 12.5,
            "replicas": {"checksum": "ef" * 32, "ranks": cell["nodes"] * cell["gpus_per_node"], "apart": []},
            "train_s": 215 * step_s, "eval_s": 0.3, "peak_memory_bytes": 300 << 20,
        },
        "dataset": {"name": cell["dataset"], "digest": "ab" * 32, "samples": 1797, "bytes": 1_900_000},
        "provenance": {
            "slipway_version": "0.1.0", "git_sha": "ced9e06", "git_dirty": False, "python": "3.11.7", "framework": cell["framework"],
            "framework_version": "2.13.0", "torch_version": "2.13.0", "kernel": "6.1.0", "os": "Debian GNU/Linux 12", "image": None,
        },
        "warnings": [],
        "files": [{"path": "parameters.safetensors", "bytes": 250_000, "blake3": "cd" * 32}],
    }  # fmt: skip
    if measured >= 100:  # a window of 30 s, whatever the step: fewer records to explain in tests that are about something else
        record["performance"]["step_s"]["n"] = record["performance"]["num_measured_steps"] = n = max(measured, round(40 / step_s))
        record["performance"]["window_s"] = n * step_s
        record["performance"]["samples"] = n * cell["global_batch_size"]
    seen = {path: value for path, value in changes.items() if path.startswith("window_seen")}
    for path, value in changes.items():
        if path not in seen:
            _set(record, path, value)
    if record["performance"] is not None and record["status"] == "ok":
        window_s = record["performance"]["window_s"]
        confirmed = {"least_s": 0.99 * window_s, "most_s": 1.01 * window_s, "together_s": window_s}
        record["window_seen"] = {"rank": 0, "window_s": window_s, **confirmed}
    for path, value in seen.items():
        _set(record, path, value)
    if "time" not in changes:
        start = datetime.fromisoformat(record["time"]["start"])
        record["time"]["end"] = (start + timedelta(seconds=record["run_s"])).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return record


def drift_of(change: float, error: float) -> dict[str, Any]:
    """A record's `drift`: the change across the window, and its standard error."""
    return {"change_ratio": change, "stderr_ratio": abs(error), "others_ratio": [error, -error] * 4, "steps": 400}


def failed(cell: Mapping[str, Any], repeat: int = 1, *, status: str = "oom", attempt: int = 1, **changes: Any) -> dict[str, Any]:
    """A record of a run that did not end well."""
    prevented = status in ("killed", "node_lost", "storage", "preempted", "cancelled")
    rank = {"rank": 1, "host": "node01", "exit_code": 41, "signal": None, "last_lines": "allocating 2 GiB\nout of memory"}
    steps = {"login": 0.4, "assign": 1.5, "stage": 2.0, "train": 3.0, "result": None, "push": 0.5, "release": 0.1}
    return make_record(
        cell, repeat, attempt=attempt,
        **{"status": status, "kind": "prevented" if prevented else "result", "result_number": None if prevented else 1,
           "status_reason": f"rank 1 on node01: {status}", "failed_rank": rank, "performance": None, "training": None,
           "steps_s": steps, "run_s": 5.6, **changes},
    )  # fmt: skip


def _set(record: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    node = record
    for name in above:
        node = node[name]
    node[last] = value


def write_study(
    directory: Path,
    cells: Sequence[Mapping[str, Any]],
    *,
    repeats: int = 3,
    baseline: Mapping[str, Any] | None = None,
    study: str = "digits-scaling",
    site: str = "local",
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    runs = [
        {"run_id": f"{cell['cell_id']}-r{repeat}", "cell_id": cell["cell_id"], "repeat": repeat}
        for repeat in range(1, repeats + 1)
        for cell in cells
    ]
    content = {
        "schema": "slipway.study/1", "study": study, "baseline": {"nodes": 1} if baseline is None else dict(baseline),
        "limits": {"walltime_s": 1800, "gpu_hours": 10, "init_s": 600}, "site": {"name": site, "storage": str(directory.parent.parent)},
        "cells": list(cells), "repeats": repeats, "runs": runs, "history": [],
    }  # fmt: skip
    (directory / "study.json").write_text(json.dumps(content))
    (directory / "study.yaml").write_text(f"# how it scales\nstudy: {study}\n")
    return directory


def write_records(directory: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """As the supervisor leaves them: every attempt, and the published record of the last result."""
    for record in records:
        content = sealed_text(record)
        run = directory / "runs" / record["run_id"]
        attempt = run / "attempts" / str(record["attempt"])
        attempt.mkdir(parents=True, exist_ok=True)
        (attempt / "record.json").write_bytes(content)
        if record["kind"] == "result":
            (run / "record.json").write_bytes(content)


def sealed_bytes(record: Mapping[str, Any]) -> bytes:
    """Seal a record by hand, also one with a value that sealed_text refuses, such as NaN."""
    line = b' "seal": "%s",\n'
    empty = line % (b"0" * 64)
    text = json.dumps({**record, "seal": "0" * 64}, indent=1, sort_keys=True).encode()
    return text.replace(empty, line % hashlib.sha256(text.replace(empty, b"")).hexdigest().encode())


def unsealed_bytes(record: Mapping[str, Any]) -> bytes:
    """Write a record as a version did that had no seals."""
    return json.dumps(record, indent=1, sort_keys=True).encode()


def scaling_cells(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """The cross product of some axes."""
    points: list[dict[str, Any]] = [{}]
    for key, values in axes.items():
        points = [{**point, key: value} for point in points for value in values]
    return [make_cell(**point) for point in points]


def plausible_records(cells: Iterable[Mapping[str, Any]], *, repeats: int = 3, noise: float = 0.01) -> list[dict[str, Any]]:
    """Records of cells that scale as a ring does: computing, plus a communication term that grows with the processes."""
    chance = random.Random(0)
    cost = {"lenet": 0.4e-3, "alexnet": 6e-3, "resnet18": 9e-3, "resnet50": 20e-3}
    records = []
    for cell in cells:
        world = cell["nodes"] * cell["gpus_per_node"]
        compute = 0.02 + cost.get(cell["model"], 5e-3) * cell["batch_size"]
        exposed = 0.25 * compute * (1 - 1 / world) + 0.002 * world
        for repeat in range(1, repeats + 1):
            records.append(make_record(cell, repeat, step_s=(compute + exposed) * chance.lognormvariate(0, noise)))
    return records


def collected(
    directory: Path, records: Iterable[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]] | None = None, **study: Any
) -> Analysis:
    """The analysis of records on disk; the study's cells are those of the records unless given."""
    records = list(records)
    cells = list({record["cell"]["cell_id"]: record["cell"] for record in records}.values()) if cells is None else cells
    write_records(write_study(directory, cells, **study), records)
    return analysed(directory)


def analysed(*directories: Path) -> Analysis:
    """The analysis of results directories."""
    return analyse(collect(directories))


def csv_rows(table: Table) -> list[dict[str, str]]:
    """The rows of a table as its CSV has them."""
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def log_sample(values: Sequence[float]) -> LogSample:
    """Return the sample of positive numbers, one for each repeat, as the report makes it of a column."""
    return report_cells.log_sample(values, range(1, len(values) + 1))


def cell_result(cell: Mapping[str, Any], steps_s: Sequence[float], **changes: Any) -> CellResult:
    """A cell with runs of these median steps, made without any file."""
    distinct = {"hardware": frozenset({CPU}), "software": frozenset(), "image_digest": frozenset(), "device": frozenset({"cpu"})}
    series = f"{cell['model']}{cell['comm_hook']}"
    sample = log_sample(steps_s) if steps_s else None
    rate = log_sample([cell["global_batch_size"] / step_s for step_s in steps_s]) if steps_s else None
    values: dict[str, Any] = {
        "source": "here", "cell_id": cell["cell_id"], "series": series, "cell": msgspec.convert(dict(cell), Cell),
        "num_runs": len(steps_s) or 3, "num_measured": len(steps_s), "num_ended_well": len(steps_s),
        "num_allocations": len(steps_s), "num_node_sets": 1, "rate": rate, "step": sample, "p95": sample, "means": {},
        "input_wait_ratio": None,
        "distinct": distinct,
        "failures": frozenset() if steps_s else frozenset({"oom"}), "marks": frozenset(),
    }  # fmt: skip
    return CellResult(**{**values, **changes})
