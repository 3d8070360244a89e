"""Count what was verified, and sum it up in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from base.humanize import counted, format_size


@dataclass
class Verified:
    """What was verified, and what was found."""

    runs: int = 0
    records: int = 0
    not_sealed: int = 0
    """Records of a version that had no seals."""
    recomputed: int = 0
    files: int = 0
    bytes: int = 0
    unread: int = 0
    """Runs for which there was no time."""
    silent: int = 0
    """Runs of which a file did not come."""
    without: int = 0
    """Runs of the study without a record: not begun, not finished, or removed by somebody."""
    outputs: int = 0
    """Files made of the records that were made again and compared."""
    left_outputs: int = 0
    """Directories in which they were not."""
    left_programs: int = 0
    """Folders of programs that were not verified."""
    programs: list[str] = field(default_factory=list)
    """Digests of the folders of programs that records name."""
    findings: list[str] = field(default_factory=list)

    def add(self, other: Verified) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def is_whole(self) -> bool:
        return not (self.findings or self.unread or self.silent or self.left_outputs or self.left_programs)


def summary(found: Verified, sources: Sequence[Path]) -> str:
    """Describe what was verified and what was not, in one line."""
    sealed = f", {found.not_sealed} of them without a seal: of an earlier version" if found.not_sealed else ""
    where = ", ".join(str(source) for source in sources)
    parts = [
        f"{where}: {counted(found.runs, 'run')}, {counted(found.records, 'record')}{sealed}, {counted(found.files, 'file')} "
        f"({format_size(found.bytes)})",
        f"numbers of {counted(found.recomputed, 'attempt')} computed again",
        f"{counted(len(set(found.programs)), 'state')} of programs' folders" if found.programs else "",
        f"{counted(found.outputs, 'file')} of tables, plots and page made again" if found.outputs else "",
        f"{counted(found.without, 'run')} of the study without a record" if found.without else "",
        f"{counted(found.silent, 'run')} not verified: storage did not answer" if found.silent else "",
        f"{counted(found.unread, 'run')} not verified: {'storage did not answer' if found.silent else 'the time was over'}"
        if found.unread
        else "",
        "tables, plots and page not verified" if found.left_outputs else "",
        f"{counted(found.left_programs, 'state')} of programs' folders not verified" if found.left_programs else "",
    ]
    return f"{'; '.join(part for part in parts if part)}: {_verdict(found)}"


def _verdict(found: Verified) -> str:
    if found.findings:
        return counted(len(found.findings), "finding")
    if not found.runs and not found.records and not found.outputs:
        return "nothing was looked at"
    return "all is what was written" if found.is_whole else "what was looked at is what was written"
