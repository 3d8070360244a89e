"""Slurm's short form of lists: `rack[1-2]n[01-04,7],x1-ib` of names, `2(x3),1` of counts. Pure."""

from __future__ import annotations

import itertools
import re
from typing import Final

from base.errors import SchedulerOutputError

LONGEST: Final = 100_000
MAX_GROUPS: Final = 64
MAX_TEXT: Final = 1 << 20
_GROUP: Final = re.compile(r"\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT: Final = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,9})\))?")


def expand(text: str) -> tuple[str, ...]:
    """The names in their order: any number of bracket groups and suffixes, zeros in front kept. Raises SchedulerOutputError."""
    if len(text) > MAX_TEXT:
        raise SchedulerOutputError(f"{text[:80]!r} and {len(text) - 80} more characters: that is not a node list of a job")
    names: list[str] = []
    for word in _words(text):
        names += _expand_word(word, text)
        if len(names) > LONGEST:
            raise SchedulerOutputError(f"{text[:80]!r} stands for more than {LONGEST} nodes: that is not a node list of a job")
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """One number per node, as in SLURM_JOB_CPUS_PER_NODE. Raises SchedulerOutputError."""
    counts: list[int] = []
    for word in text.split(","):
        match = _COUNT.fullmatch(word.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or times + len(counts) > LONGEST:
            raise SchedulerOutputError(f"{text[:200]!r} is not a list of counts such as '2(x3),1': {word[:80]!r} cannot be read")
        counts += [int(match[1])] * times
    return tuple(counts)


def _words(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    words, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise SchedulerOutputError(f"{text[:200]!r} is not a node list: its brackets do not match")
        if letter == "," and depth == 0:
            words.append(text[start:position])
            start = position + 1
    words.append(text[start:])
    if depth or not all(word.strip() for word in words):
        raise SchedulerOutputError(f"{text[:200]!r} is not a node list such as 'rack[1-2]n[01-04,7],x1'")
    return [word.strip() for word in words]


def _expand_word(word: str, text: str) -> list[str]:
    parts = _GROUP.split(word)
    choices, total = [], 1
    for index, part in enumerate(parts):
        choices.append(_expand_group(part, text) if index % 2 else [part])
        total *= len(choices[-1])
        if total > LONGEST or len(choices) > MAX_GROUPS:
            raise SchedulerOutputError(f"{text[:80]!r} stands for more than {LONGEST} nodes: that is not a node list of a job")
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def _expand_group(group: str, text: str) -> list[str]:
    found: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise SchedulerOutputError(f"{text[:200]!r} is not a node list: {part[:80]!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < LONGEST:
            raise SchedulerOutputError(f"{text[:200]!r} is not a node list: the range {part[:80]!r} runs backwards, or is very long")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        if len(found) > LONGEST:
            raise SchedulerOutputError(f"{text[:80]!r} stands for more than {LONGEST} nodes: that is not a node list of a job")
    return found
