"""Select what other tools keep of a record beside the numbers per step: the cell as words, how the run ended, its results. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workflow.study.series import flat

LONGEST: Final = 500
"""Characters of a value: what the least of these tools takes."""
TAGS: Final = ("run_id", "study", "status", "status_reason", "job_id", "scheduler", "site", "engine", "device", "attempt", "repeat")
RESULTS: Final = ("samples_per_s", "samples_per_s_per_gpu", "tokens_per_s", "window_s", "first_step_s")


def parameters(cell: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of a cell that say something, nested ones as `optimizer.momentum`."""
    return {name: _text(value) for name, value in flat(dict(cell)).items() if value is not None and value != {}}


def tags(record: Mapping[str, Any], marks: Sequence[str] = ()) -> dict[str, str]:
    """Return where and how the run ran, and with what; and in `marks` and `warnings` what is to be known of its numbers."""
    found = {name: record.get(name) for name in TAGS}
    found |= {"marks": ", ".join(marks) or None, "warnings": "; ".join(record.get("warnings") or ()) or None}
    found |= {f"provenance.{name}": value for name, value in (record.get("provenance") or {}).items()}
    return {f"slipway.{name}": _text(value) for name, value in found.items() if value is not None}


def results(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the results of the run, as far as they are known."""
    performance, training = record.get("performance") or {}, record.get("training") or {}
    found = {name: performance.get(name) for name in RESULTS}
    found |= {"final_loss": training.get("final_loss"), "run_s": record.get("run_s")}
    return {f"result/{name}": float(value) for name, value in found.items() if value is not None}


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, sort_keys=True))[:LONGEST]
