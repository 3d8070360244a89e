"""Whether the network that was trained is the model of the cell: the one fact that every framework can tell, its parameter count. Pure.

A name proves nothing. The count is that of the whole network, also where a rank of a later framework holds only a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflow.run.record.events import RankEvents


def wrong_model(events: Mapping[int, RankEvents], model: str, parameters: int) -> str | None:
    """Why this is no run of `model`, which has so many parameters; None where nothing says so."""
    for rank, told in _told(events).items():
        if told is not None and told != parameters:
            return f"the program trained another network: {model} has {parameters} parameters here, and rank {rank} tells of {told}"
    return None


def unchecked_model(events: Mapping[int, RankEvents], model: str) -> list[str]:
    """A warning where ranks that did steps do not tell the count, so that nobody has compared it."""
    told = _told(events)
    silent = [rank for rank, parameters in told.items() if parameters is None and events[rank].steps]
    if not silent:
        return []
    who = "the program" if len(silent) == len(told) else f"rank {silent[0]}"
    return [f"{who} does not tell how many parameters its network has: whether it is {model} was not checked"]


def _told(events: Mapping[int, RankEvents]) -> dict[int, Any]:
    return {rank: (entry.start or {}).get("parameters") for rank, entry in sorted(events.items())}
