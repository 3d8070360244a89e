"""Runs whose result waits on the nodes, as their supervisors' logs tell: storage that was full took no record of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workflow.run.record.attempts import names
from workflow.run.record.log_tail import last_error
from workflow.run.record.waiting import waiting_reason
from workflow.run.storage.asked_result import parse_asked
from workflow.study.paths import supervisor_log


def waiting_runs(results: Path | str, runs: Iterable[str]) -> dict[str, str]:
    """Those of `runs`, which have no record, whose result waits: the reason of each. Reads the ends of their logs."""
    logs = {parse_asked(name.removesuffix(".log"))[0] for name in names(f"{results}/logs")}
    found = {}
    for run_id in runs:
        log = supervisor_log(Path(results), run_id) if run_id in logs else None
        error = None if log is None else last_error(log)
        reason = None if error is None else waiting_reason(error)
        if reason is not None:
            found[run_id] = reason
    return found
