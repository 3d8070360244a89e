"""Each message between supervisor and node programs is what both expect, or ends the connection with a sentence."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.types import Allocation, Grant, Node
from tests.hostile import changed
from workflow.run.link.messages import ORDERED, SAID, check
from workflow.run.link.protocol import ProtocolError
from workflow.run.node.program import _ORDERS
from workflow.run.record.outcome import RankEnd

GRANT = Grant(node="n0", hostname="n0", address="10.0.0.1", cores=(0, 1)).to_json()
ALLOCATION = Allocation(
    scheduler="local", job_id="1", nodes=(Node(name="n0", hostname="h", address="127.0.0.1"),), device="cpu", exclusive=True
).to_json()
FACTS = {"hostname": "n0", "cpu_model": None, "memory_bytes": 1 << 30, "kernel": "6.1", "os": "Debian"}
LOOK = {"rank": 0, "host": "n0", "phase": None, "step": 3, "silent_s": 1.5, "limit_s": 60, "state": "S", "last_lines": ""}
STAGED: dict[str, Any] = {name: 1 for name in ("bytes", "copied_bytes", "storage_bytes", "peer_bytes", "resumed_bytes", "seconds")}
STAGED |= {"digest": "d", "lost_peers": {"1": "gone"}, "hit": False, "foreign": [["", "not known"]]}
SAYS: tuple[dict[str, Any], ...] = (
    {"say": "ready", "facts": FACTS, "grant": GRANT, "pid": 7},
    {"say": "ready", "facts": FACTS, "grant": None, "pid": 7},
    {"say": "alive", "step": None},
    {"say": "signal", "number": 15},
    {"say": "failed", "during": "stage", "error": "StagingError", "message": "it broke"},
    {"say": "preflight", "answer": {"say": "listening", "address": "127.0.0.1", "port": 4000}},
    {"say": "preflight", "answer": {"say": "reached", "reached": [None, [0.001, None], [None, "no answer"]]}},
    {"say": "preflight", "answer": {"say": "measured", "attempt": 0, "rates": [None, [1, 0.1, 0.0]], "all_reduce": None}},
    {"say": "progress", "done": 1, "total": 2},
    {"say": "listening", "address": "127.0.0.1", "port": 4000, "have": "none"},
    {"say": "waiting"},
    {"say": "loading", "seconds": 1.0},
    {"say": "staged", **STAGED},
    {"say": "staged", **STAGED, "image_id": "sha256:0", "image_s": 1.0},
    {"say": "reserved", "address": "127.0.0.1", "port": 61001},
    {"say": "exit", "end": list(RankEnd(ranks=(0,), host="n0", exit_code=0, time=1.0)), "now": 2.0},
    {"say": "overdue", "looks": [LOOK]},
    {"say": "looks", "looks": []},
    {"say": "stopped", "clean": True},
    {"say": "collected", "strangers": ["x"]},
    {"say": "pushed", "files": [{"path": "out/a", "bytes": 0, "blake3": "0"}]},
)
PLAN: dict[str, Any] = {"allocation": ALLOCATION, "tag": "t", "run_id": "r", "cell_document": {}, "engine": "bare", "group": False}
PLAN |= {"source": "/s", "cache": "/c", "run_dir": "/r", "cache_max_bytes": None, "bytes_per_s": None}
ORDERS: tuple[dict[str, Any], ...] = (
    {"do": "alive"},
    {"do": "plan", **PLAN},
    {"do": "plan", **PLAN, "framework": {}, "image": None, "beat_s": 60.0, "init_s": 300.0},
    {"do": "preflight", "order": None},
    {"do": "preflight", "order": {"do": "listen", "index": 0, "nodes": 2, "address": "127.0.0.1"}},
    {"do": "preflight", "order": {"do": "reach", "peers": [["127.0.0.1", 4000]]}},
    {"do": "preflight", "order": {"do": "measure", "attempt": 0, "ring": True, "bytes": 1, "limit_s": 0.5}},
    {"do": "peers", "peers": {"peers": [None, ["127.0.0.1", 4000, "all"]], "readers": [0], "most_readers": None, "late": False}},
    {"do": "read_image", "bytes_per_s": None},
    {"do": "fetch", "source": "/s", "bytes": 1, "blake3": "0" * 64, "limit_s": 1.0},
    {"do": "start", "master": ["127.0.0.1", 61001], "left_s": -1.0},
    {"do": "push", "part": "/p", "limit_s": 1.0},
    {"do": "end", "pending": None},
    {"do": "end", "pending": {"target": "/t", "reason": "storage is gone", "record": {}, "ended": None}},
)


def test_what_ours_say_is_ours() -> None:
    for message in SAYS:
        check(SAID, "say", message)
    for message in ORDERS:
        check(ORDERED, "do", message)


def test_every_message_of_the_code_is_known() -> None:
    rooms = Path(__file__).parents[3] / "workflow" / "run"
    code = "".join(path.read_text() for path in rooms.rglob("*.py"))
    assert set(re.findall(r'\b_?say\("(\w+)"', code)) <= SAID.keys()
    assert set(_ORDERS) == ORDERED.keys() - {"alive", "end"}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({}, "it says say: None"),
        ({"say": ["ready"]}, "no message of ours"),
        ({"say": "hello"}, "no message of ours"),
        ({"say": "ready"}, "lacks 'facts'"),
        ({"say": "exit", "end": {}, "now": 1.0}, "end: expected a list"),
        ({"say": "exit", "end": [[], "h", 0, 1.0], "now": 1.0}, "end: expected"),
        ({"say": "overdue", "looks": []}, "at least one rank"),
        ({"say": "signal", "number": 4096}, "the number of a signal"),
        ({"say": "reserved", "address": "x", "port": True}, "port: expected"),
        ({"say": "pushed", "files": [{"path": "a", "bytes": -1, "blake3": "0"}]}, r"files\.\[0\]\.bytes|files.*bytes"),
        ({"say": "staged", "digest": "d"}, "lacks 'bytes'"),
    ],
)
def test_what_is_none_of_ours_is_told(message: dict[str, Any], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        check(SAID, "say", message)


@pytest.mark.parametrize("count", [500, pytest.param(10000, marks=[pytest.mark.slow, pytest.mark.long])])
@pytest.mark.parametrize(("table", "key", "messages"), [(SAID, "say", SAYS), (ORDERED, "do", ORDERS)], ids=["say", "do"])
def test_any_message_is_ours_or_an_error_with_a_sentence(table: Any, key: str, messages: Any, count: int) -> None:
    chance = random.Random(20)
    refused = 0
    for _ in range(count):
        message = changed(chance.choice(messages), chance)
        why = ""
        try:
            check(table, key, message if isinstance(message, dict) else {})
        except ProtocolError as error:
            why = str(error)
        refused += bool(why)
        assert len(why.encode()) < 1000
    assert refused > count / 4
