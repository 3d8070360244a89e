"""Who has a run now, in words: for people who ask why it has no result. In a child with a time limit, since storage may hang."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from base.errors import SlipwayError
from cluster.schedulers import SCHEDULERS, describe_holder, get_scheduler
from workflow.run.storage.lease import Lease, read_lease
from workflow.study.paths import run_dir

HOLDERS_S: Final = 8.0
"""For each scheduler's answer about all of them."""


def lease_of(directory: Path) -> Lease | None:
    """Return the lease of a run that somebody holds, None of one whose writer is just writing it, or died in that moment."""
    try:
        lease = read_lease(directory)
    except SlipwayError:
        return None
    return None if lease is None or lease.is_torn else lease


def holder_words(lease: Lease, alive: bool | None) -> str:
    """Describe the holder, and how to end it. One of which it is not known whether it lives counts as alive, as for a supervisor."""
    return f"attempt {lease.attempt}: {describe_holder(lease.holder)}" + ("" if alive else "; whether it lives cannot be seen from here")


def held_runs(results: str, runs: Iterable[str]) -> dict[str, str]:
    """Describe the holders of those `runs` that somebody holds now, with one question to each scheduler."""
    leases = {name: lease for name in runs if (lease := lease_of(run_dir(Path(results), name))) is not None}
    by_scheduler: defaultdict[str, list[str]] = defaultdict(list)
    for name, lease in leases.items():
        by_scheduler[lease.holder.scheduler].append(name)
    alive: dict[str, bool | None] = {}
    for word, names in by_scheduler.items():
        holders = [leases[name].holder for name in names]
        answers = get_scheduler(word).holders_alive(holders, HOLDERS_S) if word in SCHEDULERS else (None,) * len(names)
        alive.update(zip(names, answers, strict=True))
    return {name: holder_words(lease, alive[name]) for name, lease in leases.items() if alive[name] is not False}
