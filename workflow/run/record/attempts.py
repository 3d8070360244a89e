"""Which attempt of a run counts: the latest result, else the latest prevented one.

A run's directory holds `record.json`, the published result, and `attempts/<n>/record.json`, every attempt. The published one is the
answer unless newer attempts lie beside it; where there is none (its supervisor died before it was published) the attempts are asked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from workflow.run.record.model import NotBelieved

MAX_BYTES: Final = 4 << 20
ASIDE: Final = re.compile(r"([1-9][0-9]{0,8})\.lost-[^/]+")
"""The directory of an attempt beside another one that has its number."""
_FIRST_READ: Final = 1 << 16  # a record is 10 kB


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The record that counts: its path below runs/, its bytes (None: there is no record), the attempts' numbers, the newest first, and the
    directories of attempts that lie beside, since another one had their number when they were delivered."""

    run_id: str
    path: str | None = None
    content: bytes | None = None
    attempts: tuple[int, ...] = ()
    aside: tuple[str, ...] = ()


class Beside(NamedTuple):
    """Another attempt than the one that counts: `prevented` or `result`; `aside` where another one has its number."""

    kind: str
    run_s: float
    num_gpus: int


def find_record(runs_dir: str, run_id: str) -> Found:
    """The record of the attempt that counts; a newest one that is torn counts too, since nobody knows what it said."""
    there = names(f"{runs_dir}/{run_id}/attempts")
    numbers = sorted((int(name) for name in there if name.isascii() and name.isdecimal()), reverse=True)
    aside = tuple([name for name in there if ASIDE.fullmatch(name)])
    published = _Candidate.read(runs_dir, f"{run_id}/record.json")
    simple = published is not None and len(numbers) <= 1
    chosen = published if simple else _latest(runs_dir, run_id, numbers, published)
    path, content = (None, None) if chosen is None else (chosen.path, chosen.content)
    return Found(run_id=run_id, path=path, content=content, attempts=tuple(numbers), aside=aside)


def beside(runs_dir: str, found: Found, counted: int | None) -> list[Beside]:
    """The attempts of a run but for the one that counts; records that are not believed are left out."""
    from workflow.run.record.reading import read_record

    others = []
    for name in (*(str(number) for number in found.attempts if number != counted), *found.aside):
        candidate = _Candidate.read(runs_dir, f"{found.run_id}/attempts/{name}/record.json")
        try:
            record = read_record(candidate.content) if candidate else None
        except NotBelieved:
            continue
        if record is not None and record.run_id == found.run_id and str(record.attempt) == name.partition(".")[0]:
            num_gpus = sum(len(node.gpus) for node in record.nodes)
            others.append(Beside("aside" if name in found.aside else record.kind, record.run_s, num_gpus))
    return others


def names(directory: str) -> list[str]:
    """The names in a directory; none if it is not there."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def attempt_directories(attempts: Path) -> list[int]:
    """The numbers of the attempts in that directory of a run, ascending: those that have one to themselves."""
    return sorted(int(name) for name in names(str(attempts)) if name.isascii() and name.isdecimal())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    path: str
    content: bytes

    @classmethod
    def read(cls, runs_dir: str, path: str) -> _Candidate | None:
        try:
            return cls(path=path, content=_read(f"{runs_dir}/{path}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def says(self) -> tuple[int, str] | None:
        """(attempt, kind), or None if it cannot be read. Whether it is believed is another question, which its reader asks."""
        try:
            record = json.loads(self.content)
            attempt, kind = record["attempt"], record["kind"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return (attempt, str(kind)) if type(attempt) is int else None


def _latest(runs_dir: str, run_id: str, numbers: Sequence[int], published: _Candidate | None) -> _Candidate | None:
    best, said = published, published.says() if published else None
    if published and said is None:
        return published
    for number in numbers:
        if said and number <= said[0]:
            break
        candidate = _Candidate.read(runs_dir, f"{run_id}/attempts/{number}/record.json")
        if candidate is None:
            continue
        speaks = candidate.says()
        if (speaks is None and best is None) or (speaks and speaks[1] == "result"):
            return candidate
        best = best or (candidate if speaks else None)
    return best


def _read(path: str) -> bytes:
    """At most MAX_BYTES + 1 bytes; what is there but cannot be read is empty, which no record is. Raises FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        return b""
    try:
        content = part = os.read(descriptor, _FIRST_READ)
        while part and _FIRST_READ <= len(content) <= MAX_BYTES:
            part = os.read(descriptor, MAX_BYTES + 1 - len(content))
            content += part
        return content
    except OSError:
        return b""
    finally:
        os.close(descriptor)
