"""Whether the numbers of a record are those that its events give: computed again from the pushed files, and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from base.jsonfile import read_json
from workflow.report.recheck import rechecked
from workflow.report.watched import Told
from workflow.run.record.continuation import joined
from workflow.run.record.events import read_events
from workflow.run.record.machine_load import loads
from workflow.run.record.ok_check import other_device
from workflow.run.record.run_record import measured
from workflow.run.record.steps_asked import StepsAsked, most_steps, steps_asked

RELATIVE: Final = 1e-9  # another version may add in another order
PARTS: Final = ("performance", "training")
OF_ANOTHER_RULE: Final = frozenset(
    {"window_s", "rate_to_median_ratio", "uneven_cause", "rank_skew_p95_ratio", "straggler_rank"}
    | {f"{unit}_per_s{each}" for unit in ("samples", "tokens") for each in ("", "_per_gpu")}
)
"""What a record of an earlier version has by other rules, and nobody can compare."""
WITH_LAST_STEP: Final = frozenset({"last_half_ratio", "first_steps_ratio"})
"""What a record may have by an earlier rule, which took the last step of the window into account, without a sign of that."""


def differences(record: Mapping[str, Any], attempt: Path, earlier: Mapping[str, Any] | None, told: Told) -> Iterator[str]:
    """One sentence for each number of the record that the events in `attempt` do not give, and one where they speak against its `ok`.
    `earlier`: the record of the attempt that this one went on from. `told` hears what is read. Raises KeyError, TypeError where the record
    is none."""
    cell = record["cell"]
    world = cell["nodes"] * cell["gpus_per_node"]
    asked = _asked(record)
    events = read_events(attempt, world, told, most_steps(cell, asked))
    told(None)
    seen = loads(attempt, events, cell, told)
    told(None)
    model = _model(attempt, cell)
    told(None)
    found = measured(events, world, cell["global_batch_size"], cell["mode"], model, asked)
    if record["status"] == "ok" and (wrong := found["contradiction"] or other_device(events, record["device"])) is not None:
        yield f"it says ok, and is an error by the rules of this version: {wrong}"
    for index, node in enumerate(record["nodes"]):
        if node.get("load") is not None:
            yield from _unequal(f"nodes[{index}].load", node["load"], seen.get(index))
    own = found
    if record["resumed_from"] is not None and earlier is not None:
        found = joined(found, {**earlier, "step": record["resumed_from"]["step"]})
    yield from rechecked(record, events, own, found)
    for part in PARTS:
        said, again = record[part], found[part]
        if part == "performance" and said is not None and again is not None:
            left_out = WITH_LAST_STEP | (OF_ANOTHER_RULE if _of_another_rule(record, said) else frozenset())
            again = {key: again[key] for key in said.keys() & again.keys() - left_out}
            said = {key: said[key] for key in again}
        yield from _unequal(part, said, again)


def _of_another_rule(record: Mapping[str, Any], performance: Mapping[str, Any]) -> bool:
    """Return whether the rate was made by an earlier rule: of the median step, or of seconds that lines of output told."""
    return performance.get("samples") is None or ("assumed" not in performance and record.get("steps_source") == "log")


def _model(attempt: Path, cell: Mapping[str, Any]) -> tuple[str, int] | None:
    """Name and parameter count of the network that was asked for, which the attempt's cell.json has."""
    path = attempt / "cell.json"
    document = read_json(path) if path.exists() else None
    parameters = document.get("model_parameters") if isinstance(document, dict) else None
    return (cell["model"], parameters) if isinstance(parameters, int) else None


def _asked(record: Mapping[str, Any]) -> StepsAsked | None:
    """None for epochs: of how many samples the dataset's training split was is not in a record."""
    cell, resumed = record["cell"], record["resumed_from"]
    return None if cell["epochs"] is not None else steps_asked(cell, 0, 0 if resumed is None else resumed["step"])


def _unequal(path: str, told: Any, again: Any) -> Iterator[str]:
    if isinstance(told, dict) and isinstance(again, dict):
        for key in sorted(told.keys() & again.keys()):
            yield from _unequal(f"{path}.{key}", told[key], again[key])
    elif isinstance(told, list) and isinstance(again, list):
        if any(_differ(one, other) for one, other in zip(told, again, strict=False)) or len(told) != len(again):
            yield f"{path} is not what its events give"
    elif _differ(told, again):
        yield f"{path} is {_shown(told)}, and its events give {_shown(again)}"


def _differ(told: Any, again: Any) -> bool:
    if isinstance(told, list | tuple) and isinstance(again, list | tuple):
        return len(told) != len(again) or any(_differ(one, other) for one, other in zip(told, again, strict=True))
    if isinstance(told, int | float) and isinstance(again, int | float):
        return not math.isclose(told, again, rel_tol=RELATIVE, abs_tol=1e-12)
    return bool(told != again)


def _shown(value: Any) -> str:
    return "an object" if isinstance(value, dict) else "nothing" if value is None else str(value)[:60]
