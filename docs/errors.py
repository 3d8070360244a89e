"""Make the tables of errors and of the ends of a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

from base.errors import AllocationError, ContainerError, DatasetError, Defect, LeaseError, PushError, SlipwayError, StagingError
from docs.markdown import code, table
from workflow.run.record.model import Status
from workflow.run.record.outcome import MEANINGS, TABLE, Ending

BY_CAUSE: Final[dict[Status, tuple[type[SlipwayError], ...]]] = {
    "node_lost": (AllocationError, ContainerError),
    "storage": (StagingError, PushError, DatasetError, LeaseError, Defect),
}
"""End -> the other classes with whose exit codes such an attempt may end, too."""


def error_table(_: str) -> str:
    """Format every error class: exit code, name, when it is raised, what to do."""
    return table(["code", "class", "when", "what to do"], (_row(one) for one in sorted(_classes(SlipwayError), key=_code)))


def _code(kind: type[SlipwayError]) -> int:
    return kind.exit_code


def _row(kind: type[SlipwayError]) -> list[str]:
    when, _, advice = (inspect.getdoc(kind) or "").partition("\n\n")
    return [str(kind.exit_code), code([kind.__name__]), when, advice or "-"]


def _classes(kind: type[SlipwayError]) -> Iterator[type[SlipwayError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == SlipwayError.__module__:
            yield from _classes(child)


def end_table(_: str) -> str:
    """Format every end of an attempt: its kind, exit code and meaning."""
    return table(["end", "kind", "exit", "when"], (_end_row(status) for status in TABLE))


def _end_row(status: Status) -> list[str]:
    ending = Ending(status=status)
    others = f"; {', '.join(str(kind.exit_code) for kind in BY_CAUSE[status])} by cause" if status in BY_CAUSE else ""
    return [code([status]), ending.kind, f"{ending.exit_code}{others}", MEANINGS[status]]
