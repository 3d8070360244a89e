"""What nvidia-smi tells of the run's GPUs while they work: clocks and what holds them down, heat, power, errors, processes of others."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

from base.command import CommandResult, run
from base.errors import SlipwayError
from base.foreign import digits
from cluster.gpus.foreign import QUERY, App, parse_apps
from cluster.limits import GPU_WATCH_ANSWER_S, GPU_WATCH_EVERY_S
from cluster.watching.readers import Found, Processors

logger = logging.getLogger(__name__)

TIMES_TOOK: Final = 50
"""A question that takes long is asked so seldom that it is 2 % of the time."""
MOST_FAILURES: Final = 3
REASONS: Final = ("clocks_throttle_reasons", "clocks_event_reasons")
"""The name until driver 535, and the one since; both mean the same bits."""
_NUMBERS: Final = ("mhz", "max_mhz", "reasons", "celsius", "watts", "busy_ratio", "ecc_errors")


def query(reasons: str) -> tuple[str, ...]:
    """Pure: the question, with the name that the driver has for what holds a clock down."""
    fields = (
        f"uuid,clocks.sm,clocks.max.sm,{reasons}.active,temperature.gpu,power.draw,utilization.gpu,ecc.errors.uncorrected.volatile.total"
    )
    return ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")


def parse_looks(answer: str) -> list[dict[str, Any]]:
    """Pure: a GPU per line; what stands in brackets, such as `[N/A]`, is not known. A line that is none of it is passed over."""
    found = []
    for line in answer.splitlines():
        uuid, *words = (word.strip() for word in line.split(","))
        if not uuid.startswith("GPU-") or len(words) != len(_NUMBERS):
            continue
        told: dict[str, Any] = {"uuid": uuid[:100]}
        for name, word in zip(_NUMBERS, words, strict=True):
            told[name] = _bits(word) if name == "reasons" else _number(word)
        told["busy_ratio"] = None if told["busy_ratio"] is None else told["busy_ratio"] / 100
        found.append(told)
    return found


def _number(word: str) -> float | None:
    whole, dot, part = word.partition(".")
    if digits(whole) is None or (dot and digits(part) is None):
        return None
    return float(word)


def _bits(word: str) -> int | None:
    if not word.startswith("0x") or len(word) > 18:
        return None
    try:
        return int(word, 16) & ((1 << 62) - 1)
    except ValueError:
        return None


def with_others(
    looks: Sequence[dict[str, Any]], wanted: Collection[str], apps: Sequence[App] | None, ours: Collection[int]
) -> list[dict[str, Any]]:
    """Pure: those of the run's own GPUs, with the number of processes that are not ours; None where nobody lists them."""
    return [
        {**look, "others": None if apps is None else sum(app.gpu == look["uuid"] and app.pid not in ours for app in apps)}
        for look in looks
        if look["uuid"] in wanted
    ]


class Gpus:
    """A reader that waits for nvidia-smi, so it is the only one of its process; its moment is that of the answer."""

    def __init__(self, uuids: Collection[str], processors: Processors) -> None:
        self._uuids, self._processors = frozenset(uuids), processors
        self._reasons = REASONS[0]
        self._failures = 0
        self._next = 0.0

    def __call__(self, now: float) -> Found:
        if self._failures >= MOST_FAILURES or now < self._next:
            return {}
        self._processors.read_all(now)
        began = time.monotonic()
        looks = self._look()
        answered = time.monotonic()
        if looks is None:
            self._failures += 1
            return {}
        self._failures = 0
        found = with_others(looks, self._uuids, self._apps(), self._processors.kin.ours)
        self._next = now + max(GPU_WATCH_EVERY_S, TIMES_TOOK * (time.monotonic() - began)) - GPU_WATCH_EVERY_S / 2
        return {"t": round(answered, 6), "gpus": found} if found else {}

    def _look(self) -> list[dict[str, Any]] | None:
        result = _ask(query(self._reasons))
        if result is not None and result.returncode and "not a valid field" in result.stdout + result.stderr:
            self._reasons = next(name for name in REASONS if name != self._reasons)
            result = _ask(query(self._reasons))
        return None if result is None or result.returncode else parse_looks(result.stdout)

    def _apps(self) -> Sequence[App] | None:
        result = _ask(QUERY)
        try:
            return None if result is None or result.returncode else parse_apps(result.stdout)
        except ValueError:
            return None


def _ask(argv: Sequence[str]) -> CommandResult | None:
    try:
        return run(argv, timeout_s=GPU_WATCH_ANSWER_S)
    except SlipwayError as error:
        logger.debug("the GPUs are not watched: %s", error)
        return None
