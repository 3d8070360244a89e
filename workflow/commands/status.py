"""List every run with its state, the reason where it has one, and the log to read, for `slipway status`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base import calls, humanize
from workflow.commands.chosen_study import load_chosen_study, no_results
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyArgument
from workflow.commands.run import blockers
from workflow.commands.watching import output, watch
from workflow.dag.refusals import refuse_unreadable_storage
from workflow.study.next_command import completed
from workflow.study.publishing import STORAGE_S
from workflow.study.study import Study

INDENT: Final = "    "


def main(study: StudyArgument = DEFAULT_STUDY, site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Show for each run whether it is done, failed, prevented, running or missing, with the reason and the log.

    `done`: it has a result that is ok. `failed`: a result that is not ok, or an unreadable record; a row of the tables.
    `prevented`: its last attempt was cut off; the same command runs it again, from its checkpoint if the reason says `resumable at
    step`. `running`: a living process holds its lease. `missing`: it has not begun, or left no record; the reason is the last error
    in its log.
    """
    print_status(load_chosen_study(study, site), as_json)


def print_status(study: Study, as_json: bool, storage_s: float = STORAGE_S) -> None:
    """Print the states. Raises StorageError where there can be none, or storage hangs: nothing comes within `storage_s`."""
    refuse_unreadable_storage(study)
    there, found = calls.call_limited(f"where the runs of {study.name} stand", _look, study, timeout_s=storage_s)
    if as_json:
        output.json_value(found)
        return
    output.prose(f"{study.name} on site {study.site_words}", INDENT)
    output.line(f"results: {study.results_dir}\n" if there else f"{no_results(study)}\n")
    _print(found["runs"], study)
    total = ", ".join(f"{found[state]} {state}" for state in watch.STATES if found[state])
    output.prose(f"\n{study.name}: {humanize.counted(len(found['runs']), 'run')}: {total}", INDENT)
    if any(run["log"] is not None for run in found["runs"]):
        output.line(f"logs: {study.command('logs', 'RUN', '--study', str(study.path))}")
    for one in found["hindrances"]:
        output.prose(f"waits for {one['what']}: {completed(one['reason'], study.chosen_site, study.path)}", INDENT)
        output.line(f"{INDENT}log: {os.path.relpath(one['log'], study.results_dir)}")
    if found["scheduler"]:
        output.prose(found["scheduler"], INDENT)


def _look(study: Study) -> tuple[bool, dict[str, object]]:
    """Return whether there are results, and what --json prints. It is called in a child with a time limit."""
    found, silence = watch.study_states(study)
    places = {cell.cell_id: place for place, cell in enumerate(study.cells)}
    states = sorted(found, key=lambda state: (places[state.run.cell.measured_id], state.run.repeat, state.run.run_id))
    waiting = blockers(study) if any(state.state in ("missing", "queued") for state in states) else []
    return study.results_dir.exists(), {
        "study": study.name,
        "site": study.site.name,
        "results": str(study.results_dir),
        "runs": [_json(state) for state in states],
        "hindrances": waiting,
        "scheduler": silence or None,
        **watch.counts(found),
    }


def _print(runs: Sequence[Mapping[str, Any]], study: Study) -> None:
    room = max(len(run["run_id"]) for run in runs)
    for run in runs:
        word = run["state"] if run["status"] in (None, "ok") else f"{run['state']} ({run['status']})"
        output.line(f"{run['run_id']:{room}}  {word}")
        if run["reason"] is not None:
            output.prose(f"{INDENT}{_below(completed(run['reason'], study.chosen_site, study.path), study.results_dir)}", INDENT)


def _below(text: str, results: Path) -> str:
    """Shorten paths in the results directory, which has been named, to what is below it."""
    return text.replace(f"{results}/", "")


def _json(state: watch.RunState) -> dict[str, object]:
    return {
        "run_id": state.run.run_id,
        **{name: getattr(state, name) for name in ("state", "status", "reason", "attempt", "checkpoint_step", "log")},
    }
