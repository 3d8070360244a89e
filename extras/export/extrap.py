"""Write what Extra-P models: JSON lines of parameters, call path, metric and value, which `extrap --json` reads.

The parameter is the number of processes. A call path is what else tells cells apart, and each series stands there twice where it can: with
its batch per process (weak scaling) and with its global batch (strong scaling). Repeats are values of the same point.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from base.publish import publish
from extras.export.runs import ExportedRun, series_keys

NEXT: Final = "extrap --json {to}/<study>/extrap.jsonl"
METRICS: Final = ("samples_per_s", "tokens_per_s")


def export(runs: Sequence[ExportedRun], to: Path) -> int:
    """Write <to>/extrap.jsonl, as Format has it; nothing where no cell was measured on two numbers of processes."""
    lines = list(points(runs))
    if lines:
        publish(to / "extrap.jsonl", "".join(f"{line}\n" for line in lines).encode())
    return bool(lines)


def points(runs: Sequence[ExportedRun]) -> Iterator[str]:
    """Yield the lines of all series with at least two numbers of processes, measured runs alone."""
    series: dict[str, list[tuple[int, str, float]]] = defaultdict(list)
    cells = [series_keys(run.cell) for run in runs]
    differing = sorted({key for cell in cells for key in cell if len({other.get(key) for other in cells}) > 1})
    for run, cell in zip(runs, cells, strict=True):
        performance = run.record.get("performance") or {}
        step = (performance.get("step_s") or {}).get("p50")
        values = {"step_s": step, **{name: performance.get(name) for name in METRICS}}
        processes = run.cell["nodes"] * run.cell["gpus_per_node"]
        words = [str(cell.get(key)) for key in ("framework", "model")] + [
            f"{key}={cell[key]}" for key in differing if key in cell and key not in ("framework", "model")
        ]
        batches = (f"batch {run.cell['batch_size']} per process", f"batch {run.cell['global_batch_size']} in all")
        for batch in batches if run.record["status"] == "ok" else ():
            series["->".join([*words, batch])] += [(processes, name, value) for name, value in values.items() if value is not None]
    for path, found in sorted(series.items()):
        if len({processes for processes, _, _ in found}) > 1:
            for processes, name, value in sorted(found):
                yield json.dumps({"params": {"processes": processes}, "callpath": path, "metric": name, "value": value})
