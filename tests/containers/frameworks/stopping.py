"""Stop a run at a checkpoint."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path


def stop_at(step: int) -> Callable[[list[subprocess.Popen[str]], Path], None]:
    """Ask for a checkpoint when rank 0 has written that step, and end the others when it has ended, as a supervisor does."""

    def watch(ranks: list[subprocess.Popen[str]], out: Path) -> None:
        events = out / "events-0.jsonl"
        while ranks[0].poll() is None:
            if events.exists() and f'"step": {step},' in events.read_text():
                (out / "stop").touch()
                break
            os.sched_yield()
        ranks[0].wait()
        for rank in ranks[1:]:
            rank.kill()

    return watch
