"""Read what other tools measured: nccl-tests' JSON, ReFrame's reports, MLPerf's logs, and tables of separated values such as CARAML's.

A result is what its file tells and no more: no window, no steps, no marks. What a file does not tell is None.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from base import errors, jsonfile
from base.sanitize import ascii_int, number, text, whole
from extras.export.mlperf import CELL
from extras.lint_table.columns import Kind, Understood, is_of_a_node, understand
from extras.lint_table.numbers import SECONDS, spelled_unit
from extras.lint_table.reading import read_tables, read_text

MLLOG: Final = ":::MLLOG "
ADVICE: Final = "give a whole file, as the tool has written it"
MAX_VALUE: Final = 1e30
"""Quotients of what is within it, and the ends of their intervals, are numbers too; nobody measures more, or less than 1 over it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One number that another tool measured. `keys`: what else tells it apart, in order; `rises`: whether more is better, None where nobody
    can tell; `value` is above 0."""

    source: str
    tool: str
    metric: str
    unit: str
    value: float
    rises: bool | None
    keys: tuple[tuple[str, str], ...] = ()
    hardware: str | None = None
    nodes: int | None = None
    processes: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None


def read_results(path: Path) -> list[Result]:
    """Return the results of a file. Raises ConfigError where it is none of the kinds that are known, or has no number."""
    content = read_text(path)
    start = content.lstrip()[:1]
    if MLLOG in content:
        found = list(_mlperf(path, content))
    elif start in ("{", "["):
        value = jsonfile.parse_json(content.encode(), path, errors.ConfigError, ADVICE)
        found = list(_nccl(path, value) if isinstance(value, dict) and "nccl_version" in value else _reframe(path, value))
    else:
        found = [result for table in read_tables(path) for result in _separated(understand(table))]
    if not found:
        kinds = "nccl-tests' JSON (-J), ReFrame's report, MLPerf's log (:::MLLOG), or a table with processes and a throughput or time"
        raise errors.ConfigError(f"{path}: no result is found there: not {kinds}")
    return found


def _positive(value: object) -> float | None:
    found = number(value)
    return found if found is not None and 1 / MAX_VALUE <= found <= MAX_VALUE else None


def _dict(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _nccl(path: Path, value: Mapping[str, object]) -> Iterator[Result]:
    """Yield the bus bandwidth and the time of each size; out of place and in place are told apart.

    The list of devices has one for each process of MPI, whatever its threads and GPUs are (nccl-tests, src/util.cu).
    """
    devices = [_dict(one) for one in _list(_dict(value.get("config")).get("devices") or value.get("devices"))]
    models = sorted({text(one["device_info"], 100) for one in devices if "device_info" in one})
    config = _dict(value.get("config"))
    ranks = len(devices) * (whole(config.get("nthreads"), 1) or 1) * (whole(config.get("ngpus"), 1) or 1)
    nodes = len({str(device.get("hostname")) for device in devices})
    result = partial(Result, tool="nccl-tests", hardware=" / ".join(models) or None, nodes=nodes or None, processes=ranks or None)
    program = Path(str((_list(value.get("args")) or ["nccl-tests"])[0])).name
    for at, one in enumerate(map(_dict, _list(value.get("results")))):
        for way in ("out_of_place", "in_place"):
            told = _dict(one.get(way))
            named = {"program": program, **{key: one[key] for key in ("size", "type", "redop") if key in one}, "way": way}
            keys = tuple((key, text(told_as, 50)) for key, told_as in named.items())
            for name, metric, unit, rises in (("bus_bw", "bus bandwidth", "GB/s", True), ("time", "time", "us", False)):
                if (found := _positive(told.get(name))) is not None:
                    source = f"{path}: results[{at}]"
                    yield result(source=source, metric=metric, unit=unit, value=found, rises=rises, keys=keys)


def _reframe(path: Path, value: object) -> Iterator[Result]:
    """Yield the performance variables of the test cases that passed; reports of version 2 (perfvars) to 4 (perfvalues)."""
    for run in map(_dict, _list(_dict(value).get("runs"))):
        for case in map(_dict, _list(run.get("testcases"))):
            if case.get("result") not in ("success", "pass"):
                continue
            told = {**_dict(case.get("check_vars")), **case}
            processes, per_node = whole(told.get("num_tasks"), 1), whole(told.get("num_tasks_per_node"), 1)
            hosts = len(_list(told.get("nodelist") or told.get("job_nodelist"))) or None
            nodes = hosts or (processes // per_node if processes and per_node else None)
            parameters = [
                (key, text(one, 50)) for key, one in _leaves(told.get("check_params")) if one != processes or isinstance(one, bool)
            ]
            name = text(told.get("display_name") or told.get("name") or "", 200).partition(" %")[0]
            keys = (("test", name), ("system", text(told.get("system") or "", 100)), *parameters)
            source = f"{path}: {text(told.get('unique_name') or name, 100)}"
            result = partial(Result, source=source, tool="ReFrame", keys=keys, nodes=nodes, processes=processes)
            for variable, found, unit in _variables(case):
                rises = False if unit in SECONDS else True if unit.endswith("/s") else None
                yield result(metric=variable, unit=unit, value=found, rises=rises)


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested objects by their names with points; they are at most as deep as `parse_json` lets them be."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, f"{name}.{text(key, 50)}".lstrip("."))
    elif name:
        yield name, value


def _variables(case: Mapping[str, object]) -> Iterator[tuple[str, float, str]]:
    named = [(key.rpartition(":")[2], _list(one)) for key, one in _dict(case.get("perfvalues")).items()]
    listed = [(one.get("name"), [one.get("value"), 0, 0, 0, one.get("unit")]) for one in map(_dict, _list(case.get("perfvars")))]
    for name, values in [*named, *listed]:
        found = _positive(values[0]) if values else None
        if found is not None:
            yield text(name or "", 100), found, text(values[4] or "" if len(values) > 4 else "", 20)


def _mlperf(path: Path, content: str) -> Iterator[Result]:
    """Yield time from run_start to run_stop, and the throughput that was told last, of a log of one run that reached its target."""
    first: dict[str, object] = {}
    last: dict[str, Mapping[str, object]] = {}
    for at, line in enumerate(content.splitlines(), 1):
        if MLLOG in line:
            entry = _dict(jsonfile.parse_json(line.partition(MLLOG)[2].encode(), f"{path}:{at}", errors.ConfigError, ADVICE))
            key = str(entry.get("key"))
            first.setdefault(key, entry.get("time_ms") if key == "run_start" else entry.get("value"))
            last[key] = entry
    ranks, nodes, each = (whole(first.get(name), 1) for name in ("number_of_ranks", "number_of_nodes", "accelerators_per_node"))
    platform = text(first.get("submission_platform") or "", 100)
    count, _, model = platform.partition("x")
    nodes = nodes or ascii_int(count) or None
    names = ("submission_benchmark", "submission_division", "submission_org")
    keys: list[tuple[str, str]] = [(name, text(first[name], 100)) for name in names if name in first]
    keys += [(text(key, 100), text(one, 1000)) for key, one in _dict(first.get(CELL)).items()]
    began, ended = _positive(first.get("run_start")), _positive(_dict(last.get("run_stop")).get("time_ms"))
    status = _dict(_dict(last.get("run_stop")).get("metadata")).get("status")
    stats = _dict(_dict(last.get("tracked_stats")).get("value"))
    hardware = (model if count.isdigit() else platform) or None
    processes = ranks or (nodes * each if nodes and each else None)
    result = partial(Result, source=str(path), tool="MLPerf", keys=tuple(keys), hardware=hardware, nodes=nodes, processes=processes)
    for metric, unit, value, rises in (
        ("time to train", "s", (ended - began) / 1000 if began and ended and ended > began and status == "success" else None, False),
        ("throughput", "samples/s", _positive(stats.get("throughput")), True),
    ):
        if value is not None:
            yield result(metric=metric, unit=unit, value=value, rises=rises, global_batch_size=whole(first.get("global_batch_size"), 1))


_MEASURES: Final = {Kind.THROUGHPUT: True, Kind.BYTE_RATE: True, Kind.STEP_TIME: False, Kind.EPOCH_TIME: False, Kind.TOTAL_TIME: False}


def _separated(found: Understood) -> Iterator[Result]:
    """Yield the throughputs and times of a table, each row a result, as far as `slipway lint-table` understands its columns."""
    per_node = any(map(is_of_a_node, found.of(Kind.MICRO_BATCH)))
    measures = [column for column in found.of(*_MEASURES) if column.unit or column.kind == Kind.THROUGHPUT]
    for row in range(len(found.table.rows)):
        hardware = " / ".join(filter(None, (found.text(row, column) for column in found.of(Kind.HARDWARE)))) or None
        keys = tuple((column.title, found.text(row, column)) for column in found.of(Kind.PARAMETER))
        processes = found.processes(row) if found.of(Kind.GPUS, Kind.GPUS_PER_NODE) else None
        source = f"{found.table.path}:{found.line(row)}"
        nodes = found.whole(row, Kind.NODES)
        result = partial(Result, source=source, tool="table", keys=keys, hardware=hardware, nodes=nodes, processes=processes)
        for column in measures:
            printed = column.number(row, column.variant)
            if printed and (value := _positive(printed.value)) is not None:
                unit = spelled_unit(column.unit) or "per s"
                batch = None if per_node else found.whole(row, Kind.MICRO_BATCH, column.variant)
                whole_batch = found.whole(row, Kind.GLOBAL_BATCH, column.variant)
                rises = _MEASURES[column.kind]
                yield result(metric=column.title, unit=unit, value=value, rises=rises, batch_size=batch, global_batch_size=whole_batch)
