"""Hold what the rules find, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """The rules, by the names that `--ignore` takes."""

    SPEEDUP = "speed-up"
    EFFICIENCY = "efficiency"
    RATIO = "ratio"
    BASE_ROW = "base-row"
    LABEL = "label"
    BATCH = "batch"
    MISSING_BATCH = "missing-batch"
    INTEGERS = "integers"
    SUPERLINEAR = "superlinear"
    RISING = "rising"
    MIXED = "mixed"
    RATE = "rate"
    THROUGHPUT = "throughput"
    EPOCHS = "epochs"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something in a table that does not hold. `table`: the line of its head; `right`: the value that would hold, in the unit of the
    column, or empty."""

    rule: Rule
    path: str
    table: int
    line: int
    column: str
    printed: str
    right: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.reason}"
