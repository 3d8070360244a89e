"""What bsub is told, by its words and by the `#BSUB` lines of a script. Pure."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

WITH_VALUE = ("-J", "-n", "-R", "-gpu", "-W", "-q", "-P", "-cwd", "-o", "-m", "-M", "-G", "-app", "-sla", "-u")
ALONE = ("-x", "-r", "-rn", "-H", "-N", "-B")


class RefusedError(Exception):
    """bsub says why."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Of one job."""

    name: str
    slots: int = 1
    per_host: int | None = None
    not_on: frozenset[str] = frozenset()
    requirement: str = ""
    minutes: float | None = None
    queue: str | None = None
    project: str = "default"
    directory: str | None = None
    output: str | None = None
    exclusive: bool = False
    rerunnable: bool = False
    held: bool = False


def parse(words: Sequence[str], script: str) -> Options:
    """Words of the command count more than those of the script. Raises RefusedError."""
    lines = [line.removeprefix("#BSUB") for line in script.splitlines() if line.startswith("#BSUB ")]
    said = [word for line in lines for word in shlex.split(line)] + list(words)
    found: dict[str, list[str]] = {}
    rest = iter(said)
    for word in rest:
        if word in WITH_VALUE:
            found.setdefault(word, []).append(next(rest, ""))
        elif word in ALONE:
            found[word] = [""]
        else:
            raise RefusedError(f"bsub: illegal option -- {word}")
    requirement = " ".join(found.get("-R", ()))
    ptile = re.search(r"span\[ptile=(\d+)\]", requirement)
    return Options(
        name=last(found, "-J", one_line(script)),
        slots=number(last(found, "-n", "1")),
        per_host=None if ptile is None else int(ptile[1]),
        not_on=frozenset(re.findall(r"hname\s*!=\s*'([^']+)'", requirement)),
        requirement=requirement,
        minutes=minutes(last(found, "-W", "")),
        queue=last(found, "-q", "") or None,
        project=last(found, "-P", "default"),
        directory=last(found, "-cwd", "") or None,
        output=last(found, "-o", "") or None,
        exclusive="-x" in found,
        rerunnable="-r" in found,
        held="-H" in found,
    )


def last(found: dict[str, list[str]], option: str, default: str) -> str:
    return found.get(option, [default])[-1]


def number(word: str) -> int:
    if not word.isdecimal() or not int(word):
        raise RefusedError(f"{word}: Bad argument for option -n. Job not submitted.")
    return int(word)


def minutes(word: str) -> float | None:
    """`[hours:]minutes`."""
    if not word:
        return None
    parts = word.split(":")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise RefusedError(f"{word}: Bad RUNLIMIT specification. Job not submitted.")
    return sum(int(part) * factor for part, factor in zip(reversed(parts), (1, 60), strict=False))


def one_line(script: str) -> str:
    """A script as LSF shows it."""
    return ";".join(script.splitlines())
