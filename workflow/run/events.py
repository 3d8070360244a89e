"""The events a program wrote, one JSON object per line: read back, checked, sorted by kind. Programs are not trusted to write well."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MAX_WARNING = 500


class Step(NamedTuple):
    """One optimizer step of one rank. `input_s` is part of `seconds`; `end_ns` is the rank's monotonic clock when it was written."""

    seconds: float
    input_s: float | None
    measured: bool
    samples: int | None
    loss: float | None
    end_ns: int | None


@dataclass
class RankEvents:
    """All that one rank said. `steps` by step number, in order."""

    start: dict[str, Any] | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    evals: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stop: dict[str, Any] | None = None
    phase: str | None = None
    broken_lines: int = 0

    def add(self, event: Any) -> None:
        """Take one event; what is none is counted."""
        kind = event.get("event") if isinstance(event, dict) else None
        try:
            if kind == "step":
                self.steps[int(event["step"])] = _step(event)
            elif kind == "run_start":
                self.start = event
            elif kind == "run_stop":
                self.stop = event
            elif kind in ("eval", "error", "checkpoint"):
                {"eval": self.evals, "error": self.errors, "checkpoint": self.checkpoints}[kind].append(event)
            elif kind == "warning":
                self.warnings.append(str(event["message"])[:MAX_WARNING])
            elif kind == "phase":
                self.phase = str(event["phase"])
            elif not isinstance(kind, str):
                self.broken_lines += 1
        except (KeyError, TypeError, ValueError):
            self.broken_lines += 1


def _step(event: dict[str, Any]) -> Step:
    seconds = number(event["seconds"])
    if seconds is None or seconds < 0:
        raise ValueError("seconds")
    samples, end_ns = event.get("samples"), event.get("monotonic_ns")
    return Step(
        seconds=seconds,
        input_s=number(event.get("input_s")),
        measured=bool(event.get("measured")),
        samples=None if samples is None else int(samples),
        loss=number(event.get("loss")),
        end_ns=None if end_ns is None else int(end_ns),
    )


def number(value: Any) -> float | None:
    """A finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def parse_line(line: bytes | str) -> Any:
    """The object in one line, or None when it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def parse_events(lines: Iterable[bytes]) -> RankEvents:
    """Events from lines that end in a newline; a last one without it was torn by the program's end and is dropped."""
    events = RankEvents()
    for line in lines:
        if line.endswith(b"\n"):
            events.add(parse_line(line))
    return events


def read_events(directory: Path, world_size: int) -> dict[int, RankEvents]:
    """The events of every rank that has a file in `directory`."""
    found = {}
    for rank in range(world_size):
        path = directory / f"events-{rank}.jsonl"
        if path.is_file():
            with path.open("rb") as file:
                found[rank] = parse_events(file)
    return found
