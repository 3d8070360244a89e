"""`slipway status`: every run with its state, the reason where it has one, and the log to read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from base.units import counted
from workflow.commands import show
from workflow.commands.before_runs import hindrances
from workflow.commands.state import RunState, counts, run_states
from workflow.study.study import load_study


def main(path: Path, site: str | None, as_json: bool) -> None:
    """Print the states."""
    study = load_study(path, site)
    states = run_states(study)
    waiting = hindrances(study) if any(state.state == "missing" for state in states) else ()
    if as_json:
        show.json_value(
            {
                "study": study.name,
                "results": str(study.results_dir),
                "runs": [_json(state) for state in states],
                "hindrances": [asdict(found) for found in waiting],
                **counts(states),
            }
        )
        return
    rows = [
        (state.run.run_id, state.state if state.status in (None, "ok") else f"{state.state} ({state.status})", state.reason, state.log)
        for state in states
    ]
    show.table(("run", "state", "reason", "log"), rows)
    total = ", ".join(f"{count} {state}" for state, count in counts(states).items() if count)
    show.line(f"\n{study.name}: {counted(len(states), 'run')}: {total}")
    for found in waiting:
        show.line(f"waits for {found.what}: {found.reason}\n  log: {found.log}")


def _json(state: RunState) -> dict[str, Any]:
    return {
        "run_id": state.run.run_id,
        **{name: getattr(state, name) for name in ("state", "status", "reason", "attempt", "checkpoint_step", "log")},
    }
