"""Write the log lines of MLPerf (`:::MLLOG`), one file per run, which the parser of mlcommons/logging reads.

Keys and their meaning are those of mlperf_logging/mllog/constants.py. What a submission needs beside them (its organisation, division,
quality targets) is not known here and not made up, so these are logs for tools, no submission.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from base.publish import publish
from extras.export.runs import ExportedRun, series_keys
from workflow.run.record.events import RankEvents
from workflow.run.record.model import OwnKeys

NEXT: Final = "python -m mlperf_logging.compliance_checker.mlp_parser.ruleset_610 {to}/<study>/mlperf/<run>.txt"
TOKEN: Final = ":::MLLOG "
CELL: Final = "slipway_cell"
"""A key of ours: what else tells the run apart, such as its precision. `slipway import` knows it."""
OPTIMIZER: Final = {"name": "opt_name", "learning_rate": "opt_base_learning_rate", "weight_decay": "opt_weight_decay"}


def export(runs: Sequence[ExportedRun], to: Path) -> int:
    """Write <to>/mlperf/<run>.txt of each run, as Format has it."""
    (to / "mlperf").mkdir(exist_ok=True)
    for run in runs:
        publish(to / "mlperf" / f"{run.run_id}.txt", "".join(log_lines(run.record, run.events())).encode())
    return len(runs)


def log_lines(record: OwnKeys, events: Mapping[int, RankEvents]) -> Iterator[str]:
    """Yield the lines of one run in the order of their times, which are rank 0's; where that told none, the run's begin and end."""
    cell, performance = record["cell"], record.get("performance") or {}
    began, ended = (datetime.fromisoformat(record["time"][name]).timestamp() for name in ("start", "end"))
    rank = events.get(0) or RankEvents()
    start = rank.head.time or began
    stop = (rank.stop.time if rank.stop else None) or max(ended, start)
    yield _line(began, "init_start", None, "INTERVAL_START")
    optimizer = cell.get("optimizer") or {}
    facts = {
        "submission_benchmark": cell["model"],
        "number_of_nodes": cell["nodes"],
        "accelerators_per_node": cell["gpus_per_node"],
        "global_batch_size": cell["global_batch_size"],
        "gradient_accumulation_steps": cell.get("gradient_accumulation_steps", 1),
        "seed": cell.get("seed"),
        **{key: optimizer.get(name) for name, key in OPTIMIZER.items()},
        CELL: series_keys(cell),
    }
    for key, value in facts.items():
        if value is not None:
            yield _line(began, key, value)
    yield _line(start, "init_stop", None, "INTERVAL_END")
    yield _line(start, "run_start", None, "INTERVAL_START")
    last = max(rank.steps, default=0)
    rate = {f"{unit}_per_s": performance.get(f"{unit}_per_s") for unit in ("samples", "tokens")}
    rates = {"throughput" if name == "samples_per_s" else name: value for name, value in rate.items() if value is not None}
    for one in rank.evals:
        if one.accuracy is not None:
            at: dict[str, Any] = {"epoch_num": one.epoch, "step_num": last if one.step is None else one.step, "samples_count": one.samples}
            yield _line(min(one.time or stop, stop), "eval_accuracy", one.accuracy, **at)
    if rates:
        yield _line(stop, "tracked_stats", rates, step=last, window_s=performance.get("window_s"))
    yield _line(stop, "run_stop", None, "INTERVAL_END", status="success" if record["status"] == "ok" else "aborted")


def _line(time_s: float, key: str, value: Any, event: str = "POINT_IN_TIME", **metadata: Any) -> str:
    found = {
        "namespace": "",
        "time_ms": round(1000 * time_s),
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": "slipway", "lineno": 0, **{name: one for name, one in metadata.items() if one is not None}},
    }
    return f"{TOKEN}{json.dumps(found)}\n"
