"""Read steps from what a program prints: each line that an expression matches tells of the steps up to its own. Python 3.6, standard
library only; docs/developers/framework-contract.md says what the groups of an expression mean.

A line that tells every tenth step tells of ten: their time is one mean. So is that of lines which came in one reading, because the program
buffers its output: when each of them was printed, nobody knows.
"""

import math
import re
from typing import Any, Dict, List, NamedTuple, Optional

MAX_LINE = 4096
"""Characters of a line that are looked at."""
MAX_STEPS = 1000000
"""The most steps between two lines."""
BUFFERED = 0.2
MAX_SECONDS = 1e8
MAX_NUMBER = 1e15
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(?!\d|,)")
_COLOURS = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")


class Line(NamedTuple):
    """What one line says. `done`: steps that have ended; `gap`: how many since the line before; `steps`: how many its seconds, samples and
    tokens are for, 1 where it does not say."""

    done: int
    gap: int
    steps: float
    seconds: Optional[float]
    samples: Optional[float]
    tokens: Optional[float]
    loss: Optional[float]


def plain_number(text: Optional[str]) -> Optional[float]:
    """Return `1,234`, `1.2e-3` and `nan` as numbers; None where it is none. A comma is between thousands: the `0,5` of some languages is no
    5.
    """
    try:
        plain = None if text is None else text.strip("'\" ")
        return None if plain is None else float(plain.replace(",", "") if _THOUSANDS.match(plain) else plain)
    except ValueError:
        return None


class Steps:
    """The steps of one rank. Times are those of one monotonic clock, in seconds; `started`: when the program was."""

    def __init__(self, settings: Dict[str, Any], steps: Dict[str, int], started: float) -> None:
        self.expression = re.compile(settings["step"])
        self.counts_lines = "step" not in self.expression.groupindex
        self.every = int(settings.get("every") or 1)
        self.window = (steps["warmup"], steps["warmup"] + steps["measured"])
        self.total = steps.get("total") or self.window[1]
        self.told_at = started
        self.done = 0
        self.offset: Optional[int] = None
        self.epoch: Optional[float] = None
        self.epoch_steps = self.before_epoch = 0.0
        self.lines = self.together = self.again = self.unreadable = self.uncounted = 0

    def find(self, line: str) -> Optional[Dict[str, Optional[str]]]:
        """Match the groups in this line; None where the expression does not match."""
        match = self.expression.search(_COLOURS.sub("", line) if "\x1b" in line else line, 0, MAX_LINE)
        return None if match is None else match.groupdict()

    def take(self, lines: List[str], now: float) -> Optional[Dict[str, float]]:
        """Return the event of the steps that these lines, which came together at `now`, tell of; None where they tell of none."""
        begin, told = self.done, []
        for line in lines:
            found = self.find(line)
            one = None if found is None else self.read(found)
            if one is not None:
                told.append(one)
                self.done = one.done
        if not told:
            return None
        self.lines += len(told)
        self.together += len(told) - 1
        count = self.done - begin
        # seconds that the lines tell count where they are those of all their steps: a line every ten steps may time one of them
        seconds = added([one.seconds for one in told]) if all(one.steps == one.gap for one in told) else None
        event: Dict[str, float] = {
            "step": self.done - 1,
            "steps": count,
            "measured": self.window[0] <= begin and self.done <= self.window[1],
        }
        event["seconds"] = (max(0.0, now - self.told_at) if seconds is None else seconds) / count
        for name in ("samples", "tokens"):
            total = added([None if getattr(one, name) is None else getattr(one, name) * one.gap / one.steps for one in told])
            if total is not None and 0 <= total <= MAX_NUMBER:
                event[name] = int(round(total / count))
            elif total is not None or any(getattr(one, name) is not None for one in told):
                self.uncounted += 1
        losses = [one.loss for one in told if one.loss is not None]
        if losses:
            event["loss"] = next((loss for loss in losses if not math.isfinite(loss)), losses[-1])
        self.told_at = now
        return event

    def read(self, found: Dict[str, Optional[str]]) -> Optional[Line]:
        """Return what the groups of one line say; None where that is no step after the last one."""
        numbers = {name: plain_number(text) for name, text in found.items()}
        done = self.done + self.every if self.counts_lines else self.number(numbers)
        if done is None or done - self.done > MAX_STEPS:
            self.unreadable += 1
            return None
        if done <= self.done:
            self.again += 1
            return None
        seconds = numbers.get("seconds")
        if seconds is None and numbers.get("milliseconds") is not None:
            seconds = (numbers["milliseconds"] or 0.0) / 1000
        if seconds is not None and not 0 <= seconds <= MAX_SECONDS:
            seconds = None
        steps = numbers.get("steps") or 1.0
        self.keep_epoch(numbers)
        return Line(
            done, done - self.done, steps if 1 <= steps <= MAX_STEPS else 1.0, seconds, *map(numbers.get, ("samples", "tokens", "loss"))
        )

    def number(self, numbers: Dict[str, Optional[float]]) -> Optional[int]:
        """Return how many steps have ended by the step that a line names. Who counts from 0 tells of the first one as 0."""
        step, epoch, each = numbers.get("step"), numbers.get("epoch"), numbers.get("epoch_steps")
        if step is None or not 0 <= step <= MAX_NUMBER:
            return None
        if epoch is not None and each is not None:
            step += self.steps_before(epoch, each)
        if not math.isfinite(step):
            return None
        if self.offset is None:
            self.offset = 1 if step == 0 else 0
        return int(step) + self.offset

    def steps_before(self, epoch: float, each: float) -> float:
        """Count the steps of the epochs before `epoch`, from the first epoch that a line named. Lines give the length of an epoch, which
        may vary (neon: 118, 117, 117); `each` is the length of an epoch without lines."""
        if self.epoch is None:
            return 0.0
        if epoch <= self.epoch:
            return self.before_epoch - (self.epoch - epoch) * each
        return self.before_epoch + self.epoch_steps + (epoch - self.epoch - 1) * each

    def keep_epoch(self, numbers: Dict[str, Optional[float]]) -> None:
        """Keep the epoch of the last line that held a valid step."""
        epoch, each = numbers.get("epoch"), numbers.get("epoch_steps")
        if epoch is not None and each is not None and "step" in numbers:
            self.before_epoch = self.steps_before(epoch, each)
            self.epoch, self.epoch_steps = epoch, each

    def warnings(self) -> List[str]:
        """Return what was odd about the lines, a sentence each."""
        found = []
        if self.lines >= 10 and self.together > BUFFERED * self.lines:
            why = (
                "the program buffers its output, or prints faster than that can be read; their times are means of those that came together"
            )
            found.append("%d of %d lines with steps came together with one before: %s" % (self.together, self.lines, why))
        if self.again:
            found.append("%d lines tell of a step that was told before, or of an earlier one, and were left out" % self.again)
        if self.counts_lines and self.done > self.total:
            words = (
                "its lines count as %d steps, and the cell asks for %d: the program does more, or the expression matches other lines too"
            )
            found.append(words % (self.done, self.total))
        if self.unreadable:
            found.append("%d lines match the expression, and tell of no step that can be: they were left out" % self.unreadable)
        if self.uncounted:
            words = "%d readings of lines tell of samples or tokens that are no count of all their steps: they count as not told"
            found.append(words % self.uncounted)
        return found


def added(values: List[Optional[float]]) -> Optional[float]:
    """Return the sum; None where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and all(map(math.isfinite, known)) else None
