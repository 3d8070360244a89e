"""Compare what a record says of itself with what else is known: its marks, warnings, provenance, times and hosts. Pure, of one record.

A mark that was removed from a record is not a number that differs, and a table would show the number without it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from base.units import some
from containers.engines import ENGINES, in_container
from workflow.report.lint import BUDGET_MISMATCH
from workflow.run.record.busy import busy, others_seen
from workflow.run.record.columns import BESIDE
from workflow.run.record.events import RankEvents
from workflow.run.record.outcome import Ending
from workflow.run.record.plausibility import clock_warnings
from workflow.run.record.replicas import NOT_COMPARED
from workflow.run.record.run_record import MAX_WARNINGS, network_warnings, window_warnings
from workflow.run.record.size import is_long, was_shortened
from workflow.run.record.window_seen import seen_warnings

LEAST_S: Final = 0.001
CLOCK_S: Final = 1.0
WALL_S: Final = 60.0
"""What a time service may set a wall clock by within a run."""
MOST_HOSTS: Final = 6
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


def rechecked(
    record: Mapping[str, Any], events: Mapping[int, RankEvents], own: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence for each thing that does not follow from the rest. `own`: what run_record.measured makes of this attempt's `events`;
    `found`: with what the attempt before it had measured."""
    yield from _times(record, events)
    yield from of_hosts(record, events)
    yield from _busy(record)
    yield from _warnings(record, own, found)
    yield from _window(record, own)
    yield from _sum(record)
    if record["oversubscribed"] is False and (why := _crowded(record)):
        yield f"oversubscribed is false, and {why}"
    yield from of_its_programs(record, own["provenance"])


def of_its_programs(record: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    """Where its provenance is not what its programs `told`; a record that was too large goes without what is long."""
    shortened = any(was_shortened(warning) for warning in record["warnings"])
    for key, value in sorted(told.items()):
        if shortened and key not in record["provenance"] and is_long(value):
            continue
        if record["provenance"].get(key) != value:
            yield f"provenance.{key} is {_shown(record['provenance'].get(key))}, and its events tell {_shown(value)}"


def _times(record: Mapping[str, Any], events: Mapping[int, RankEvents]) -> Iterator[str]:
    """Compare the wall time of the record with its duration, and with the moments at which the ranks of the head node started and stopped.
    Clocks of different nodes are never compared, and a clock that was set in between says nothing."""
    start, end = (datetime.fromisoformat(record["time"][key]) for key in ("start", "end"))
    lasted_s, slack_s = (end - start).total_seconds(), max(BUDGET_MISMATCH * record["run_s"], CLOCK_S)
    waited_s = record["steps_s"].get(BESIDE) or 0.0  # for this machine, after the start; in a queue before it
    if not -slack_s <= lasted_s - record["run_s"] <= waited_s + slack_s:
        yield f"run_s is {record['run_s']}, and from time.start to time.end it is {lasted_s:.3f} s"
    for rank, entry in events.items():
        moments = [event for event in (entry.start, entry.stop) if event is not None and event.get("time") is not None]
        if rank >= record["cell"]["gpus_per_node"] or not moments or _was_set(moments):
            continue
        if moments[0]["time"] < start.timestamp() - WALL_S or moments[-1]["time"] > end.timestamp() + WALL_S:
            ran = " to ".join(datetime.fromtimestamp(event["time"], UTC).isoformat(timespec="seconds") for event in moments)
            yield f"its time is {start.isoformat()} to {end.isoformat()}, and rank {rank} ran from {ran} (or its node's clock was set)"
            return


def of_hosts(record: Mapping[str, Any], events: Mapping[int, RankEvents]) -> Iterator[str]:
    """Compare the hosts of the record with those that its ranks name. A container, or a program of the user, may name them freely."""
    if record["cell"].get("program") is not None or record["engine"] not in ENGINES or in_container(record["engine"]):
        return
    hosts = {_short(node["hostname"]) for node in record["nodes"]}
    named = {_short(entry.start["hostname"]) for entry in events.values() if entry.start and entry.start.get("hostname")}
    if others := named - hosts:
        yield f"its nodes are {some(sorted(hosts), MOST_HOSTS)}, and its programs ran on {some(sorted(others), MOST_HOSTS)}"


def _was_set(moments: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the wall clock and the monotonic clock of a rank did not go on by the same time."""
    offsets = [event["time"] - event["monotonic_ns"] / 1e9 for event in moments if event.get("monotonic_ns") is not None]
    return len(offsets) == 2 and abs(offsets[1] - offsets[0]) > CLOCK_S


def _short(hostname: str) -> str:
    """Return the name without its domain, which one of two programs may add."""
    return hostname.partition(".")[0].lower()


def _busy(record: Mapping[str, Any]) -> Iterator[str]:
    """Older versions word a reason otherwise: where they do, the nodes are compared that have any."""
    if "busy" not in record:
        return
    told, again = record["busy"] or [], busy(record["nodes"])
    alike = [_NUMBER.sub("0", one) for one in told] == [_NUMBER.sub("0", one) for one in again]
    if (alike and told != again) or _nodes_of(told) != _nodes_of(again):
        yield f"busy says {_sentences(told)}, and the load of its nodes gives {_sentences(again)}"
    if left := [one for one in told if one not in record["warnings"]]:
        yield f"its warnings are without {_sentences(left)}, which busy says"
    if others_seen(record["nodes"]) and record["exclusive"]:
        yield "exclusive is true, and others were seen at work on its nodes while it measured"


def _warnings(record: Mapping[str, Any], own: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """What must stand in it; of the others only the supervisor knew."""
    if len(record["warnings"]) >= MAX_WARNINGS:
        return
    resumed = record["resumed_from"]
    must = [
        *network_warnings(record["preflight"]),
        *window_warnings(Ending(status=record["status"]), record["cell"], found, None if resumed is None else resumed["step"]),
        *clock_warnings(own, record["steps_s"]["train"], record["cell"]["mode"]),
        *(seen_warnings(record.get("window_seen")) if record["status"] == "ok" else []),
        *(one for one in own["warnings"] if one != NOT_COMPARED),  # of no version before that compared ranks
    ]
    if left := [one for one in must if one not in record["warnings"]]:
        yield f"its warnings are without {_sentences(left)}, which its events give (an older version may not have seen that)"


def _window(record: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """What the node program saw stands in the record alone; beside it must stand what the rank tells."""
    told = {rank: window_s for rank, _, _, window_s in own["windows_told"]}
    if record["status"] != "ok" or "window_seen" not in record or not told:
        return
    seen = record["window_seen"]
    if seen is None:
        yield "window_seen is nothing, and its events tell of a window"
    elif "assumed" not in (record["performance"] or {}) and record.get("steps_source") == "log":
        return  # of a version that took the window of output to be as long as its steps
    elif seen["rank"] not in told or not math.isclose(seen["window_s"], told[seen["rank"]], rel_tol=1e-9):
        again = _shown(told.get(seen["rank"]))
        yield f"window_seen.window_s is {_shown(seen['window_s'])}, and the events of rank {seen['rank']} give {again}"


def _sum(record: Mapping[str, Any]) -> Iterator[str]:
    total = sum(seconds or 0.0 for step, seconds in record["steps_s"].items() if step not in ("login", BESIDE))
    if abs(total - record["run_s"]) > max(BUDGET_MISMATCH * record["run_s"], LEAST_S):
        yield f"run_s is {record['run_s']}, and the steps stage to release add up to {total:.6f}"


def _crowded(record: Mapping[str, Any]) -> str:
    """In words, what shared cores; of GPUs' processes the cores are no measure."""
    owners: dict[tuple[str, int], set[str]] = defaultdict(set)
    processes = record["cell"]["gpus_per_node"]
    for node in record["nodes"]:
        for core in node.get("cores") or ():
            owners[node["hostname"], core].add(node["name"])
        if record["device"] == "cpu" and node.get("cores") and processes > len(node["cores"]):
            return f"{processes} processes of {node['name']} had {len(node['cores'])} cores"
    shared = [names for names in owners.values() if len(names) > 1]
    return f"{' and '.join(sorted(shared[0])[:2])} had cores in common" if shared else ""


def _nodes_of(sentences: Sequence[str]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in sentences}


def _sentences(values: Sequence[str]) -> str:
    return f"{'; '.join(map(repr, values[:2]))[:400]}{f' and {len(values) - 2} more' if len(values) > 2 else ''}" if values else "nothing"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:80]
