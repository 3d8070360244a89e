"""One record, read by its kinds: the values of the columns, or in words what keeps it from being believed.

Everything that shows a record goes through here: tables, plots, page, `slipway status`, the graph. Foreign bytes are checked once, and
nothing behind has to ask whether a number is a number. No polars, since the commands that only look read a few records.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from base.jsonfile import with_keys_once
from base.seal import WRONG, seal_state
from workflow.run.record.attempts import MAX_BYTES
from workflow.run.record.busy import beyond
from workflow.run.record.columns import FIELDS, MACHINES, PREVENTED, RECORD_CELL, REQUIRED, REQUIRED_OBJECTS, RESULTS, SCHEMA_NAME
from workflow.run.record.hardware import machine_words
from workflow.run.record.kinds import FROM_ONE, NAME, REAL, WHOLE, NotBelieved, Take, shown, taker
from workflow.run.record.losses import curve, without_losses

_NESTED: Final = frozenset((dict, list))
ULPS: Final = 1 + 1e-9  # a mean of equal numbers may differ from them by the last digit


def read_row(content: bytes) -> tuple[Any, ...]:
    """The values of COLUMNS. Raises NotBelieved."""
    return _finished(read_value(content), _walk)


def read_untyped_row(content: bytes) -> tuple[Any, ...]:
    """The same, where nobody has looked at the types of FIELDS and RECORD_CELL yet: in a fifth of the time, for whoever looks at the
    values of many records together. Raises NotBelieved, and TypeError where a type is wrong that the rules in `_check` meet."""
    return _finished(read_value(content), _take_all)


def _finished(record: Mapping[str, Any], walk: Callable[[_Branch, Mapping[str, Any], list[Any]], None]) -> tuple[Any, ...]:
    curve(record)
    row: list[Any] = []
    walk(_TREE, record, row)
    nodes = _list("nodes", record.get("nodes"))
    row += _machines(nodes)
    _check(row, len(nodes))
    return tuple(row)


def read_fields(content: bytes) -> dict[str, Any]:
    """The same by name."""
    return dict(zip(COLUMNS, read_row(content), strict=True))


def read_value(content: bytes, *, losses: bool = False) -> dict[str, Any]:
    """The JSON of a record, its seal checked, without its loss curve unless asked. Raises NotBelieved."""
    from pydantic_core import from_json

    if len(content) > MAX_BYTES:
        raise NotBelieved(f"it has more than {MAX_BYTES} bytes: this is not a record of ours")
    seal = seal_state(content)
    if seal in WRONG:
        advice = "`slipway run STUDY --retry failed` takes the record of its attempt, or makes the run again"
        raise NotBelieved(f"it is not what was written: {WRONG[seal]}; {advice}")
    if not content.strip():
        raise NotBelieved("it is empty")
    try:
        text = content if losses else without_losses(content)
        record = from_json(text, allow_inf_nan=False)
        if type(record) is not dict:
            raise NotBelieved(f"found {shown(record)}, expected an object")
        if seal == "unsealed" and _num_keys_told(text) != _num_keys(record):  # what is sealed was written from an object
            json.loads(text, object_pairs_hook=with_keys_once)
    except NotBelieved:
        raise
    except ValueError as error:
        raise NotBelieved(f"it is no JSON: {error}") from error
    return record


def _num_keys_told(text: bytes) -> int:
    """At least as many as there are in the text, a key that is there twice counted twice; more where a text in it looks like a key."""
    return text.translate(None, b" \t\r\n").count(b'":')


def _num_keys(value: Any) -> int:
    """In all objects of it: to ask the decoder for each object takes three times as long."""
    num, left = 0, [value]
    while left:
        one = left.pop()
        if type(one) is dict:
            num += len(one)
            one = one.values()
        left += [inner for inner in one if type(inner) in _NESTED]
    return num


@dataclass(frozen=True, kw_only=True)
class _Branch:
    """An object of the record: its values, the objects in it, and as many nulls as it has values where it is null."""

    path: str
    leaves: tuple[tuple[str, Take], ...]
    keys: tuple[str, ...]
    inner: tuple[tuple[str, _Branch], ...]
    columns: tuple[str, ...]
    required: bool


def _branch(fields: Mapping[str, tuple[str, Any]], path: str = "") -> _Branch:
    leaves: dict[str, str] = {}
    below: dict[str, dict[str, tuple[str, Any]]] = {}
    for column, (place, kind) in fields.items():
        first, _, rest = place.partition(".")
        if rest:
            below.setdefault(first, {})[column] = (rest, kind)
        else:
            leaves[column] = first
    inner = tuple((name, _branch(those, f"{path}{name}.")) for name, those in below.items())
    return _Branch(
        path=path.rstrip("."),
        leaves=tuple((key, taker(f"{path}{key}", fields[name][1], required=name in REQUIRED)) for name, key in leaves.items()),
        keys=tuple(leaves.values()),
        inner=inner,
        columns=(*leaves, *(column for _, branch in inner for column in branch.columns)),
        required=path.rstrip(".") in REQUIRED_OBJECTS,
    )


def _walk(branch: _Branch, value: Mapping[str, Any], row: list[Any]) -> None:
    for key, take in branch.leaves:
        row.append(take(value.get(key)))
    _go_on(branch, value, row, _walk)


def _take_all(branch: _Branch, value: Mapping[str, Any], row: list[Any]) -> None:
    row += map(value.get, branch.keys)
    _go_on(branch, value, row, _take_all)


def _go_on(
    branch: _Branch, value: Mapping[str, Any], row: list[Any], walk: Callable[[_Branch, Mapping[str, Any], list[Any]], None]
) -> None:
    for key, inner in branch.inner:
        found = value.get(key)
        if type(found) is dict:
            walk(inner, found, row)
        elif found is None and not inner.required:
            row += [None] * len(inner.columns)
        else:
            raise NotBelieved(f"{inner.path}: found {'nothing' if found is None else shown(found)}, expected an object")


_TREE: Final = _branch({**FIELDS, **RECORD_CELL})
COLUMNS: Final = (*_TREE.columns, *MACHINES)
_AT: Final = {name: index for index, name in enumerate(COLUMNS)}

_HOST = taker("nodes[].hostname", NAME, required=True)
_CPU, _GPU = taker("nodes[].cpu_model", NAME, required=False), taker("nodes[].gpus[].model", NAME, required=False)
_MEMORY = taker("nodes[].memory_bytes", WHOLE, required=False)
_BYTES = taker("nodes[].stage", WHOLE, required=False)
_SECONDS, _CORES = taker("nodes[].load", REAL, required=True), taker("nodes[].load", REAL, required=False)
_OF_CORES = taker("nodes[].load.cores", FROM_ONE, required=True)
_OF_MACHINE: Final = ("cpu_model", "machine_cores", "memory_bytes", "network")
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@lru_cache(maxsize=1024)
def _machine(values: bytes) -> tuple[frozenset[str], str, str, int | None]:
    """Return the models of the GPUs, two names and the memory of a machine. Most nodes of a study are alike, so each kind is read once;
    `values` are bytes, in which 1, 1.0 and true differ."""
    models, cpu_model, cores, memory, network = marshal.loads(values)
    own, cpu, memory_bytes = tuple(map(_GPU, models)), _CPU(cpu_model), _MEMORY(memory)
    gpus = frozenset(filter(None, own))
    name = ", ".join(part for part in (" and ".join(sorted(gpus)), cpu) if part)
    return gpus, name, machine_words(cpu, cores, memory_bytes, own, network), memory_bytes


def _machines(nodes: Sequence[Any]) -> list[Any]:
    """The values of MACHINES."""
    hosts, names, machines, memory, staged, copied = [], set(), set(), [], [], []
    models: set[str] = set()
    num_gpus, mixed = 0, False
    busiest: tuple[float | None, int | None] = None, None
    unseen: set[bool] = set()
    for node in nodes:
        get = _object("nodes[]", node).get
        hosts.append(_HOST(get("hostname")))
        own = [_object("nodes[].gpus[]", gpu).get("model") for gpu in _list("nodes[].gpus", get("gpus"))]
        gpus, name, words, memory_bytes = _machine(marshal.dumps((own, *map(get, _OF_MACHINE)), 0))
        models |= gpus
        num_gpus += len(own)
        mixed |= len(gpus) > 1
        names.add(name)
        memory.append(memory_bytes)
        machines.add(words)
        stage = {} if get("stage") is None else _object("nodes[].stage", get("stage"))
        staged.append(_BYTES(stage.get("bytes")))
        copied.append(_BYTES(stage.get("copied_bytes")))
        if "load" in node:
            unseen.add(get("load") is None or _unseen(_object("nodes[].load", get("load"))))
        if get("load") is not None:
            busiest = max(busiest, _others(_object("nodes[].load", get("load"))), key=lambda found: found[0] or 0.0)
    names.discard("")
    return [
        ",".join(hosts) or None,
        " + ".join(sorted(names)) or None,
        " + ".join(sorted(machines - {""})) or None,
        " + ".join(sorted(models)) or None,
        mixed or len(names) > 1,
        num_gpus,
        min((found for found in memory if found is not None), default=None),
        *[sum(values) if values and None not in values else None for values in (staged, copied)],
        *busiest,
        any(unseen) if unseen else None,
    ]


def _others(load: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Cores that others used while it measured, and of how many; nothing where that was less than the limit."""
    if load.get("during") is None:
        return None, None
    during, cores = _object("nodes[].load.during", load["during"]), _OF_CORES(load.get("cores"))
    part = {"seconds": _SECONDS(during.get("seconds")), "others_cores": _CORES(during.get("others_cores"))}
    return (part["others_cores"], cores) if beyond(cores, part) else (None, None)


def _unseen(load: Mapping[str, Any]) -> bool:
    """Whether nobody knows what others used while it measured."""
    return load.get("during") is None or _object("nodes[].load.during", load["during"]).get("others_cores") is None


def _list(path: str, value: Any) -> list[Any]:
    if type(value) is not list:
        raise NotBelieved(f"{path}: found {'nothing' if value is None else shown(value)}, expected a list")
    return value


def _object(path: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise NotBelieved(f"{path}: found {'null' if value is None else shown(value)}, expected an object")
    return value


def _check(row: Sequence[Any], num_nodes: int) -> None:
    """What must fit together. Raises NotBelieved."""
    _check_end(row)
    world, nodes, per_node, batch, total = _of(
        row, "world_size", "record_nodes", "record_gpus_per_node", "record_batch_size", "record_global_batch_size"
    )
    if world != nodes * per_node or total != batch * world or num_nodes != nodes:
        raise NotBelieved(
            f"its numbers contradict: a cell of {nodes} nodes x {per_node} with batch {batch} each and {total} in all, "
            f"{num_nodes} nodes and world_size {world}"
        )
    start, end = (_MOMENT.fullmatch(text) for text in _of(row, "start", "end"))
    if start is None or end is None or (start[2] == end[2] and start[1] > end[1]):
        raise NotBelieved(f"its time is from {shown(row[_AT['start']])} to {shown(row[_AT['end']])}")
    for name, digest in zip(("dataset.digest", "seal"), _of(row, "dataset_digest", "seal"), strict=True):
        if digest is not None and not _DIGEST.fullmatch(digest):
            raise NotBelieved(f"{name}: found {shown(digest)}, expected 64 hex digits")
    if row[_AT["step_n"]] is not None:
        _check_steps(row)


def _check_end(row: Sequence[Any]) -> None:
    schema, status, kind, number, reason = _of(row, "schema", "status", "kind", "result_number", "status_reason")
    if schema != SCHEMA_NAME:
        raise NotBelieved(f"its schema is {shown(schema)}, not {SCHEMA_NAME}")
    if status not in RESULTS and status not in PREVENTED:
        raise NotBelieved(f"its status is {shown(status)}, which is none of ours")
    if kind != ("prevented" if status in PREVENTED else "result") or (number is None) != (kind == "prevented"):
        raise NotBelieved(f"its kind is {shown(kind)} and its result_number {shown(number)}, which its status {status} is not")
    if status == "ok" and reason is not None:
        raise NotBelieved(f"its status is ok, and it says why it is not: {shown(reason)}")


def _of(row: Sequence[Any], *names: str) -> list[Any]:
    return [row[_AT[name]] for name in names]


def _check_steps(row: Sequence[Any]) -> None:
    names = ("min", "p50", "p90", "p95", "p99", "max")
    ordered = [row[_AT[f"step_{name}_s"]] for name in names]
    for (less, more), (low, high) in zip(zip(names, names[1:], strict=False), zip(ordered, ordered[1:], strict=False), strict=True):
        if low > high * ULPS:
            raise NotBelieved(f"its steps contradict: {less} is {low} s and {more} is {high} s")
    mean, window = row[_AT["step_mean_s"]], row[_AT["window_s"]]
    if not ordered[0] <= mean * ULPS <= ordered[-1] * ULPS**2:
        raise NotBelieved(f"its steps contradict: from {ordered[0]} to {ordered[-1]} s, and {mean} s in the mean")
    if ordered[1] <= 0 or (window is not None and window <= 0):
        raise NotBelieved(f"its median step is {ordered[1]} s, its window {window} s")
