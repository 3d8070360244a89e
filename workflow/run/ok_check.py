"""Whether the files that were pushed bear out an ending `ok`. Pure.

That the ranks ended well was seen while they wrote. Their directory is open to the program, and to whoever else may write there, until it
is pushed: what makes a row of the tables is what then lies on storage.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow.run.events import RankEvents
from workflow.run.model_check import wrong_model


def contradiction(events: Mapping[int, RankEvents], world_size: int, model: tuple[str, int] | None) -> str | None:
    """Why a run with these pushed events is none that ended `ok`, None where nothing speaks against it. `model`: name and parameter count
    of the cell's network."""
    return unfinished(events, world_size) or (None if model is None else wrong_model(events, *model))


def unfinished(events: Mapping[int, RankEvents], world_size: int) -> str | None:
    """The first rank whose events do not go from run_start to run_stop."""
    for rank in range(world_size):
        entry = events.get(rank)
        if entry is None:
            return f"rank {rank} ended well, and there is no events-{rank}.jsonl among what could be pushed: {_WHY}"
        missing = [kind for kind, event in (("run_start", entry.start), ("run_stop", entry.stop)) if event is None]
        if missing:
            return f"rank {rank} ended well, and its events-{rank}.jsonl was pushed without {' and '.join(missing)}: {_WHY}"
    return None


_WHY = "the program, or another process, has changed its output directory before it was on storage; nothing in it is to be believed"
