"""Copy the files of one node to storage when its attempt has ended, and under which names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from containers.spec import CHECKPOINT, PARAMETERS

if TYPE_CHECKING:
    from data_prep.push import Naming

LEAST_FILES: Final = 100
"""How many files a node may push, however many nodes share the number that a record takes."""


def names_on_storage(ranks: Sequence[int], index: int) -> Naming:
    """Pure: `ranks`: of node `index`, whose events we read. Rank 0 writes what else we know."""
    from data_prep.push import Naming

    events = tuple(f"events-{rank}.jsonl" for rank in ranks)
    return Naming((*events, PARAMETERS, CHECKPOINT), None, (CHECKPOINT,)) if index == 0 else Naming(events, f"of-node-{index}")


def push_node_files(places: tuple[str, str, str], names: Naming, nodes: int) -> list[dict[str, Any]]:
    """In a child: copy what the program wrote, and what we wrote, to storage; path, bytes, hash of every file. `places`: both, and the
    target; `nodes`: how many share the number of files that a record takes."""
    from data_prep.push import MOST_FILES, push_files

    out, own, part = map(Path, places)
    most = max(LEAST_FILES, MOST_FILES // nodes)
    return list(push_files(out, part, own_dir=own, naming=names, most=most))
