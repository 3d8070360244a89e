"""The file in which the watchers of a node wrote what they saw of the machine, read into lines whose values are in range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from base.untrusted import Unusable, open_file
from workflow.run.record.events import bounded_lines, parse_line

MAX_LINES: Final = 100_000
OWN_FELL_S: Final = 0.1
"""Processes whose parent is none of ours take their time along when they end, as a container does: from then on ours is not known."""

Amount = Annotated[float, Meta(ge=0, le=1e15)]


class Gpu(TypedDict):
    """One GPU at that moment. `reasons`: bits of why its clock is not higher; `others`: processes on it that are not ours."""

    uuid: str
    mhz: Amount | None
    max_mhz: Amount | None
    reasons: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None
    celsius: Amount | None
    watts: Amount | None
    busy_ratio: Amount | None
    ecc_errors: Amount | None
    others: Amount | None


class Line(TypedDict):
    """What the watcher saw at the moment `t`; counters and seconds are since boot, or since it began."""

    t: Amount
    idle: NotRequired[Amount]
    steal: NotRequired[Amount]
    interrupts: NotRequired[Amount]
    own: NotRequired[Amount]
    faults: NotRequired[Amount]
    kernel: NotRequired[Amount]
    busiest: NotRequired[list[tuple[str, Amount]]]
    switches: NotRequired[tuple[Amount, Amount]]
    available: NotRequired[Amount]
    swapped_in: NotRequired[Amount]
    swapped_out: NotRequired[Amount]
    cpu_some: NotRequired[Amount]
    memory_some: NotRequired[Amount]
    memory_full: NotRequired[Amount]
    io_some: NotRequired[Amount]
    io_full: NotRequired[Amount]
    mhz: NotRequired[tuple[Amount, Amount]]
    throttled: NotRequired[Amount]
    gpus: NotRequired[list[Gpu]]


class _Head(TypedDict):
    schema: Literal["slipway.load/1"]
    cores: Annotated[int, Meta(gt=0, lt=1 << 20)]
    kernel_seen: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Of one node: how many cores the run had, the lines in order of their times, and whether the kernel's threads could be seen: where
    they cannot, nobody knows what of the rest was theirs and what was of others."""

    cores: int
    lines: tuple[Mapping[str, Any], ...]
    kernel_seen: bool = True


def file_name(index: int) -> str:
    """Of the node of that position, in an attempt's directory."""
    return f"load-{index}.jsonl"


def read_watched(path: Path) -> Watched | None:
    """The file of a watcher; lines that are none of its are passed over. None where there is no such file."""
    try:
        descriptor = open_file(path)
    except (FileNotFoundError, NotADirectoryError, Unusable):
        return None
    with open(descriptor, "rb") as file:
        return parse_watched(bounded_lines(file))


def parse_watched(lines: Iterable[bytes]) -> Watched | None:
    """The lines of such a file. Two watchers write to it, one of them of GPUs only, each in order of its own times."""
    head: Any = None
    found: list[Any] = []
    latest: dict[bool, float] = {}
    most_own = 0.0
    for number, line in enumerate(lines):
        if number > MAX_LINES or not line.endswith(b"\n"):  # the last one may be torn
            break
        value = parse_line(line)
        if head is None and (head := _read(_Head, value)) is not None:
            continue
        sample = _read(Line, value)
        if sample is None or sample["t"] < latest.get(kind := "gpus" in sample, 0.0):
            continue
        latest[kind] = sample["t"]
        if sample.get("own", most_own) < most_own - OWN_FELL_S:
            sample = {key: seen for key, seen in sample.items() if key != "own"}
        most_own = max(most_own, sample.get("own", 0.0))
        found.append(sample)
    if head is None:
        return None
    found.sort(key=lambda sample: sample["t"])
    return Watched(cores=head["cores"], lines=tuple(found), kernel_seen=head.get("kernel_seen", True))


def _read(kind: Any, value: Any) -> Any:
    """Without what a `kind` has not; None where it is none."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):  # which it wants to tell of a text with half of a character
        return None
