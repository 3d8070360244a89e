"""Divide the nodes of a job into sets for `slipway submit --spread`, so that repeats have nodes of their own. Pure.

Runs of a cell go through the sets. What nodes have in common with themselves, a slow link or a warm chip, is the same in all repeats on
them: an interval over such repeats says nothing about other nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

SETS: Final = "SLIPWAY_NODE_SETS"
"""Environment variable of the job: into how many equal sets its nodes are divided, in the order of its node list."""


def node_sets(cells: Iterable[str], sets: int) -> list[int]:
    """Return for each run of a study the set that it takes, 0 to `sets` - 1.

    `cells`: the cell of each run, in the study's order. A cell takes the set that it has used least, so that as many repeats as there
    are sets are on different nodes; of several the one whose turn it is, so that runs next to each other can go side by side.
    """
    used: dict[str, Counter[int]] = defaultdict(Counter)
    found = []
    for place, cell in enumerate(cells):
        chosen = min(range(sets), key=lambda one: (used[cell][one], (one - place) % sets))
        used[cell][chosen] += 1
        found.append(chosen)
    return found
