"""Whether a machine was busy with something else while it measured, so much that the number can have moved. Pure: of the records' nodes.

Each is a fact: a measured number beyond a limit. How often the limit for others is passed on a machine where nobody else works, and how
often a program beside the run passes it, `python -m benchmarks.busy` measures; docs/tables.md has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

OTHERS_CORES: Final = 0.2
"""What a quiet machine's own services use at most."""
OTHERS_RATIO: Final = 0.05
"""Of the run's cores, where these are few."""
LEAST_OTHERS_S: Final = 0.15
"""Processor seconds: the kernel tells those of each process in hundredths."""
STEAL_RATIO: Final = 0.05
MEMORY_RATIO: Final = 0.05
SLOWED: Final = frozenset({"hardware slowdown", "heat (driver)", "heat (hardware)", "power brake"})
"""Of a GPU's reasons; a power cap holds at full load on many, and says nothing."""
MOST: Final = 10


def busy(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each thing that was too much of, in the measured window, on any node."""
    found = []
    for node in nodes:
        load = node.get("load")
        if load is not None and load["during"] is not None:
            found += [f"{node['name']}: {words}" for words in _reasons(load["cores"], load["during"])]
    return found[:MOST]


def together(sentences: Sequence[str]) -> list[str]:
    """For people: what was said of several nodes alike is said once, of all of them."""
    nodes: dict[str, list[str]] = {}
    for sentence in sentences:
        name, colon, words = sentence.partition(": ")
        nodes.setdefault(words if colon else sentence, []).append(name)
    return [f"{', '.join(names)}: {words}" if words != names[0] else words for words, names in nodes.items()]


def others_seen(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether others worked on any node during the window. What is before it tells nothing of others: there daemons load our image and
    nodes stage our dataset."""
    loads = [node["load"] for node in nodes if node.get("load") is not None]
    parts = [(load["cores"], load["during"]) for load in loads if load["during"] is not None]
    return any(beyond(cores, part["others_cores"], part["seconds"]) for cores, part in parts)


def beyond(cores: int, others_cores: float | None, seconds: float) -> bool:
    """Return whether others used more of the run's `cores` in these seconds than a quiet machine does; False where nobody knows."""
    if others_cores is None:
        return False
    return others_cores > max(min(OTHERS_CORES, OTHERS_RATIO * cores), LEAST_OTHERS_S / seconds if seconds else OTHERS_CORES)


def _reasons(cores: int, part: Mapping[str, Any]) -> list[str]:
    found = []
    if beyond(cores, part["others_cores"], part["seconds"]):
        names = ", ".join(one["name"] for one in part["busiest"])
        found.append(
            f"others used {part['others_cores']:.2g} of {cores} core{'s' * (cores > 1)} while it measured{f' ({names})' if names else ''}"
        )
    if part["steal_ratio"] > STEAL_RATIO:
        found.append(f"the host of this virtual machine took {part['steal_ratio'] * 100:.0f} % of its cores' time while it measured")
    if (part["memory_wait_ratio"] or 0.0) > MEMORY_RATIO:
        found.append(f"programs waited for memory in {part['memory_wait_ratio'] * 100:.0f} % of the time that was measured")
    if part["swapped_in_bytes"]:
        found.append(f"{part['swapped_in_bytes'] / 2**20:.1f} MiB came back from the swap space while it measured")
    if part["throttle_events"]:
        found.append(f"heat slowed its cores down {part['throttle_events']} times while it measured")
    for gpu in part["gpus"] or ():
        found += [f"{gpu['uuid']}: {words}" for words in _gpu_reasons(gpu)]
    return found


def _gpu_reasons(gpu: Mapping[str, Any]) -> list[str]:
    slowed = [name for name in gpu["throttled"] or () if name in SLOWED]
    others = gpu["others_max"] or 0
    return [
        *([f"its clock was held down by {', '.join(slowed)} while it measured"] if slowed else []),
        *([f"{others} process{'es' * (others > 1)} of others used it while it measured"] if others else []),
    ]
