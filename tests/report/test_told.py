"""Whatever numbers a program tells, the record that is made of them is one that our own reader takes."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.report.builder import make_cell, make_record
from workflow.report.reading import read_row
from workflow.run.events import parse_events
from workflow.run.record import measured

NUMBERS = (0, -0.0, -1e-9, -5, 1e-300, 1e-15, 1e-9, 0.1, 0.1, 0.1, 0.2, 1, 3, 1e9, 1e16, 1e300, 2**63 - 1, 2**62, True, None, "0.1", 1.5)


def lines_of(rng: random.Random, rank: int) -> list[bytes]:
    """The events of one rank: each number is either an ordinary one or one of NUMBERS."""

    def number(ordinary: Any) -> Any:
        return ordinary if rng.random() < share else rng.choice(NUMBERS)

    share = rng.choice((0.0, 0.9, 0.99))
    events: list[dict[str, Any]] = [{"event": "run_start", "parameters": number(10), "provenance": {"tf32": number(1)}}]
    for step in range(rng.choice((1, 2, 5, 30, 120))):
        seconds = {name: number(0.1) for name in ("seconds", "input_s", "exchange_s") if name == "seconds" or rng.random() < 0.5}
        told = {"samples": number(2), "loss": number(1.0), "monotonic_ns": number((step + 1) * 10**8)}
        events.append({"event": "step", "step": step, "measured": rng.random() < 0.9, **seconds, **told})
    events.append({"event": "eval", "split": "test", **{name: number(0.5) for name in ("loss", "accuracy", "samples")}})
    names = ("norm", "train_s", "eval_s", "window_wall_s", "window_steps_s", "max_memory_allocated_bytes")
    events.append({"event": "run_stop", **{name: number(5.0) for name in names}})
    return [json.dumps(event).encode() + b"\n" for event in events]


def test_no_number_that_a_program_tells_makes_its_record_unreadable() -> None:
    rng = random.Random(10)
    for _ in range(300):
        ranks = rng.choice((1, 2, 4))
        events = {rank: parse_events(lines_of(rng, rank)) for rank in range(ranks)}
        cell = make_cell(nodes=ranks, mode=rng.choice(("train", "infer")))
        found = measured(events, ranks, cell["global_batch_size"], cell["mode"])
        record = {**make_record(cell), **{key: found[key] for key in ("performance", "training")}}
        read_row(json.dumps(record).encode())
