"""Whatever a program tells, the record that is made of them is one that our own reader takes."""

import json
import random
from typing import Any

import msgspec
import pytest

from base.seal import sealed_text
from tests.workflow.report.builder import make_cell, make_record
from tests.workflow.run.valid import validate_record
from workflow.run.record.events import parse_events
from workflow.run.record.model import Performance
from workflow.run.record.outcome import Ending
from workflow.run.record.parquet_columns import PROVENANCE
from workflow.run.record.reading import read_record
from workflow.run.record.run_record import Measurements, RunFacts, RunTimes, build_record, measured

NUMBERS = (0, -0.0, -1e-9, -5, 1e-300, 1e-15, 1e-9, 0.1, 0.1, 0.1, 0.2, 1, 3, 1e9, 1e16, 1e300, 2**63 - 1, 2**62, True, None, "0.1", 1.5)
NUMBERS += (1e100, -1e100, 1e101, 1e-100, 2**53, 2**53 + 1, 1e8, 1e8 + 1, 1e15)
VALUES: tuple[Any, ...] = (*NUMBERS, "", "2.13.0", "\N{GRINNING FACE}" * 2000, "\ud800", "\0", [], ["2", 13], {}, {"a": {"b": 1}})


def lines_of(rng: random.Random, rank: int) -> list[bytes]:
    """The events of one rank: each number is either an ordinary one or one of NUMBERS."""

    def number(ordinary: Any) -> Any:
        return ordinary if rng.random() < share else rng.choice(NUMBERS)

    share = rng.choice((0.0, 0.9, 0.99))
    provenance = {name: rng.choice(VALUES) for name in PROVENANCE if rng.random() < 0.2}
    names = {name: rng.choice(VALUES) for name in ("framework", "framework_version") if rng.random() < 0.2}
    events: list[dict[str, Any]] = [{"event": "run_start", "parameters": number(10), "provenance": provenance, **names}]
    events.append({"event": "warning", "message": rng.choice(VALUES)})
    for step in range(rng.choice((1, 2, 5, 30, 120))):
        seconds = {
            name: number(0.1)
            for name in ("seconds", "input_s", "exchange_s", "copy_s", "forward_s")
            if name == "seconds" or rng.random() < 0.5
        }
        told = {"samples": number(2), "loss": number(1.0), "monotonic_ns": number((step + 1) * 10**8)}
        events.append({"event": "step", "step": step, "measured": rng.random() < 0.9, **seconds, **told})
    events.append({"event": "eval", "split": rng.choice(VALUES), **{name: number(0.5) for name in ("loss", "accuracy", "samples")}})
    names = ("norm", "train_s", "eval_s", "window_wall_s", "window_steps_s", "max_memory_allocated_bytes")
    events.append({"event": "run_stop", **{name: number(5.0) for name in names}})
    return [json.dumps(event).encode() + b"\n" for event in events]


def built(plain: dict[str, Any], found: Measurements, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """The record that is written of a run with these measurements; all else in it is as in `plain`."""
    allocation = {key: plain[key] for key in ("scheduler", "scheduler_version", "job_id", "restart_count", "oversubscribed", "device")}
    checkpoint = {"bytes": 1, "blake3": "a" * 64}
    before = None if earlier is None else {**checkpoint, **earlier}
    run = msgspec.convert({**plain, "allocation": allocation, "earlier": before, "result_number": 1, "warnings": []}, RunFacts)
    times = msgspec.convert({**plain["time"], "run_s": plain["run_s"], "steps_s": plain["steps_s"]}, RunTimes)
    return build_record(run, Ending(status="ok"), times, found, []).to_json()


def recorded(cell: dict[str, Any], found: Measurements, earlier: dict[str, Any] | None) -> dict[str, Any]:
    return built(make_record(cell), found, earlier)


@pytest.mark.parametrize("seed", [10, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (11, 12))])
def test_nothing_that_a_program_tells_makes_its_record_unreadable(seed: int) -> None:
    rng = random.Random(seed)
    earlier = None
    for _ in range(100):
        ranks = rng.choice((1, 2, 4))
        events = {rank: parse_events(lines_of(rng, rank)) for rank in range(ranks)}
        cell = make_cell(nodes=ranks, mode=rng.choice(("train", "infer")))
        found = measured(events, ranks, cell["global_batch_size"], cell["mode"])
        record = recorded(cell, found, earlier)
        read_record(sealed_text(record))
        assert record["provenance"]["git_sha"] == make_record(cell)["provenance"]["git_sha"], "which is not the program's to say"
        validate_record(record)
        earlier = rng.choice((None, {**record, "step": rng.choice((0, 3, 1000)), "used_s": 1.0}))


@pytest.mark.parametrize("window_seen", [None, {"rank": 1, "window_s": 20.0, "least_s": 19.9, "most_s": 20.1, "together_s": 20.2}])
def test_a_window_of_the_attempt_before_that_nobody_confirmed_stands_as_such(window_seen: dict[str, Any] | None) -> None:
    """That attempt was cut off at a checkpoint, and this one had no step left to measure."""
    before = make_record(make_cell())
    found = measured({0: parse_events([])}, 1, 32, "train")
    record = recorded(make_cell(), found, {**before, "step": 210, "used_s": 1.0, "window_seen": window_seen})
    assert msgspec.convert(record["performance"], Performance) == msgspec.convert(before["performance"], Performance)
    told_s = before["performance"]["window_s"]
    assert record["window_seen"] == (window_seen or {"rank": 0, "window_s": told_s, "least_s": None, "most_s": None, "together_s": None})
    validate_record(record)


@pytest.mark.parametrize(("device", "cores", "threads", "crowded"), [("cpu", 1, 4, True), ("cpu", 4, 4, False), ("cuda", 1, 4, False)])
def test_more_threads_than_cores_are_oversubscribed(device: str, cores: int, threads: int, crowded: bool) -> None:
    plain = make_record(make_cell(), device=device, threads_per_rank=threads)
    nodes = [{**node, "cores": list(range(cores))} for node in plain["nodes"]]
    found = measured({0: parse_events([])}, 1, 32, "train")
    assert built({**plain, "nodes": nodes}, found)["oversubscribed"] is crowded
