"""Find what differs between the records of two groups of runs: every field, each value once. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

Facts = Mapping[str, frozenset[str]]
"""Field, such as `nodes[].gpus[].model`, -> its values as JSON. What is null, empty or not there has none."""

OUTCOMES: Final = (
    *("schema", "run_id", "repeat", "attempt", "result_number", "status", "kind", "status_reason", "failed_rank", "failed_nodes"),
    *("time", "run_s", "steps_s", "job_id", "restart_count", "busy", "preflight", "performance", "training", "window_seen"),
    *("resumed_from", "checkpoint", "warnings", "files", "seal", "nodes[].stage", "nodes[].image_s", "nodes[].load", "cell.cell_id"),
)
"""What a run came to, and its own names: two runs of one cell differ in these. All other fields say what a run was made of."""


def facts_of(record: Mapping[str, object]) -> Facts:
    """Return all fields of a record; those of the entries of a list are put together."""
    found: dict[str, set[str]] = {}
    for path, value in _leaves(record, ""):
        found.setdefault(path, set()).add(value)
    return {path: frozenset(values) for path, values in found.items()}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
        for entry in value:
            yield from _leaves(entry, f"{path}[]")
    elif value is not None and value not in ([], ()):
        yield path, json.dumps(value)


def together(facts: Iterable[Facts]) -> Facts:
    """Put the values of several runs together."""
    found: dict[str, frozenset[str]] = {}
    for one in facts:
        for path, values in one.items():
            found[path] = found.get(path, frozenset()) | values
    return found


def differing(one: Facts, other: Facts) -> list[str]:
    """Return the fields that do not have the same values in both, without what the runs came to."""
    return [path for path in dict.fromkeys((*one, *other)) if one.get(path) != other.get(path) and not is_outcome(path)]


def is_outcome(path: str) -> bool:
    """Return True if two runs of one cell may differ in this field."""
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) for prefix in OUTCOMES)


def shown(values: Iterable[str]) -> list[str]:
    """Return values for people: strings without quotes."""
    return sorted(json.loads(value) if value.startswith('"') else value for value in values)
