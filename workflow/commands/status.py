"""`slipway status`: every run with its state, the reason where it has one, and the log to read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from base.units import counted
from workflow.commands import show
from workflow.commands.before_runs import hindrances
from workflow.commands.queued_runs import standing
from workflow.commands.results import no_results
from workflow.commands.state import RunState, counts
from workflow.commands.told_study import told_study
from workflow.dag.storage_place import refuse_unreadable_storage
from workflow.study.next_command import completed
from workflow.study.study import Study

INDENT: Final = "    "


def main(path: Path, site: str | None, as_json: bool) -> None:
    """Print the states. Raises StorageError where there can be none."""
    study = told_study(path, site)
    refuse_unreadable_storage(study)
    found = standing(study)
    states = found.states
    waiting = hindrances(study) if any(state.state in ("missing", "queued") for state in states) else ()
    if as_json:
        show.json_value(
            {
                "study": study.name,
                "site": study.site.name,
                "results": str(study.results_dir),
                "runs": [_json(state) for state in states],
                "hindrances": [asdict(one) for one in waiting],
                "scheduler": found.silence or None,
                **counts(states),
            }
        )
        return
    show.prose(f"{study.name} on site {study.site_words}", INDENT)
    show.line(f"results: {study.results_dir}\n" if study.results_dir.exists() else f"{no_results(study)}\n")
    _print(states, study)
    total = ", ".join(f"{count} {state}" for state, count in counts(states).items() if count)
    show.prose(f"\n{study.name}: {counted(len(states), 'run')}: {total}", INDENT)
    if any(state.log is not None for state in states):
        show.line(f"logs: {study.command('logs', 'RUN', '--study', str(study.path))}")
    for one in waiting:
        show.prose(f"waits for {one.what}: {completed(one.reason, study.chosen_site, study.path)}", INDENT)
        show.line(f"{INDENT}log: {os.path.relpath(one.log, study.results_dir)}")
    if found.silence:
        show.prose(found.silence, INDENT)


def _print(states: Sequence[RunState], study: Study) -> None:
    """One line a run; under it the reason where it has one. Paths are below the results."""
    room = max(len(state.run.run_id) for state in states)
    for state in states:
        word = state.state if state.status in (None, "ok") else f"{state.state} ({state.status})"
        show.line(f"{state.run.run_id:{room}}  {word}")
        if state.reason is not None:
            show.prose(f"{INDENT}{_below(completed(state.reason, study.chosen_site, study.path), study.results_dir)}", INDENT)


def _below(text: str, results: Path) -> str:
    """Paths in the results directory, which has been named, as they are below it."""
    return text.replace(f"{results}/", "")


def _json(state: RunState) -> dict[str, Any]:
    return {
        "run_id": state.run.run_id,
        **{name: getattr(state, name) for name in ("state", "status", "reason", "attempt", "checkpoint_step", "log")},
    }
