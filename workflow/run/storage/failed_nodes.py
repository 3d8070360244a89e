"""Nodes that prevented earlier attempts of a run, by the records of these: its next attempt keeps off them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from workflow.run.record.outcome import RESULT
from workflow.run.storage.results import attempt_numbers, records

NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")
MOST_ATTEMPTS: Final = 4
MOST_NODES: Final = 16
"""Where many nodes fail it is hardly they: a job that may have none of them would wait for ever."""
FORGOTTEN_S: Final = 86_400.0
"""After that a node was perhaps mended."""


def nodes_to_avoid(run_dir: Path, now: float) -> tuple[str, ...]:
    """By the scheduler's names, those of the newest attempt first. `now`: unix seconds. Reads storage. Raises StorageError."""
    return avoided(records(run_dir, attempt_numbers(run_dir)[:MOST_ATTEMPTS]), now)


def avoided(found: Iterable[Mapping[str, Any]], now: float) -> tuple[str, ...]:
    """Pure. `found`: records of the run's attempts, the newest first; those before its last result do not count."""
    return tuple(dict.fromkeys(_nodes(found, now)))[:MOST_NODES]


def _nodes(found: Iterable[Mapping[str, Any]], now: float) -> Iterator[str]:
    for record in found:
        if record.get("kind") == RESULT:
            return
        try:
            age_s = now - datetime.fromisoformat(record["time"]["end"]).timestamp()
        except (KeyError, TypeError, ValueError):
            continue
        if age_s < FORGOTTEN_S:
            yield from (name for name in record.get("failed_nodes") or () if isinstance(name, str) and NODE.fullmatch(name))
