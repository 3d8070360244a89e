"""Many cases of one kind in a child process, each within bounds of memory and time."""

import faulthandler
import random
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from base.errors import SlipwayError
from tests.fuzz.mutate import Style, mutated

CASE_S: Final = 10.0
"""A case takes a few milliseconds; this is for a machine with much else to do."""
CASE_BYTES: Final = 1 << 30
"""More than the process has at its start."""
STACK_S: Final = 60.0
"""After so long without an end of any case, where Python is goes to stderr: a lock that nobody opens hears no signal."""
SHOWN: Final = 5


@dataclass(frozen=True)
class Kind:
    """`read(content, directory)` does with a file of this kind all that its readers do; `names`: what every error must name."""

    style: Style
    samples: Callable[[Path], tuple[bytes, ...]]
    read: Callable[[bytes, Path], object]
    names: str = ""
    errors: tuple[type[Exception], ...] = (SlipwayError,)


class TooSlow(Exception):
    """A case takes longer than CASE_S."""


def run_cases(kind: Kind, directory: str, seed: int, count: int) -> dict[str, Any]:
    """{"read", "refused": how many; "failures": the first few, as text, and how many there are}. For a child process: it limits itself."""
    faulthandler.dump_traceback_later(STACK_S)
    place = Path(directory)
    samples = kind.samples(place)
    for sample in samples:
        kind.read(sample, place)  # undamaged, each is read
    _limit()
    chance = random.Random(seed)
    read = refused = 0
    failures: list[str] = []
    for number in range(count):
        faulthandler.dump_traceback_later(STACK_S)
        content = mutated(chance.choice(samples), kind.style, chance)
        problem = _case(kind, content, place)
        read += problem is None
        refused += problem == ""
        if problem:
            failures.append(f"case {number} of seed {seed}: {content[:300]!r}\n{problem}")
    return {"read": read, "refused": refused, "failed": len(failures), "failures": failures[:SHOWN]}


def _case(kind: Kind, content: bytes, place: Path) -> str | None:
    """None: it was read; empty: it was refused as it should; else what went wrong."""
    signal.setitimer(signal.ITIMER_REAL, CASE_S)
    try:
        kind.read(content, place)
    except kind.errors as error:
        message = str(error)
        message.encode()
        if kind.names in message:
            return ""
        return f"the error does not name {kind.names!r}: {message[:500]}"
    except BaseException as error:  # anything else is what is looked for
        return "".join(traceback.format_exception(error)[-4:])[-3000:].encode("utf-8", "backslashreplace").decode()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _limit() -> None:
    def too_slow(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"not done after {CASE_S:g} s")

    signal.signal(signal.SIGALRM, too_slow)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + CASE_BYTES, used + CASE_BYTES))
