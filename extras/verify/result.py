"""Count what was verified, and sum it up in a line."""

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
    runs_not_verified: int = 0
    """Runs on storage that did not answer, and those that were not begun after that."""
    runs_without_record: int = 0
    """Runs of the study without a record: not begun, not finished, or removed by somebody."""
    programs_not_verified: int = 0
    programs: list[str] = field(default_factory=list)
    """Digests of the folders of programs that records name."""
    findings: list[str] = field(default_factory=list)

    def add(self, other: "Verified") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def is_whole(self) -> bool:
        return not (self.findings or self.runs_not_verified or self.programs_not_verified)


def summary(found: Verified, sources: Sequence[Path]) -> str:
    """Describe what was verified and what was not, in one line."""
    sealed = f", {found.not_sealed} of them without a seal: of an earlier version" if found.not_sealed else ""
    where = ", ".join(str(source) for source in sources)
    parts = [
        f"{where}: {counted(found.runs, 'run')}, {counted(found.records, 'record')}{sealed}, {counted(found.files, 'file')} "
        f"({format_size(found.bytes)})",
        f"numbers of {counted(found.recomputed, 'attempt')} computed again",
        f"{counted(len(set(found.programs)), 'state')} of programs' folders" if found.programs else "",
        f"{counted(found.runs_without_record, 'run')} of the study without a record" if found.runs_without_record else "",
        f"{counted(found.runs_not_verified, 'run')} not verified: storage did not answer" if found.runs_not_verified else "",
        f"{counted(found.programs_not_verified, 'state')} of programs' folders not verified" if found.programs_not_verified else "",
    ]
    return f"{'; '.join(part for part in parts if part)}: {_verdict(found)}"


def _verdict(found: Verified) -> str:
    if found.findings:
        return counted(len(found.findings), "finding")
    if not found.runs and not found.records:
        return "nothing was looked at"
    return "all is what was written" if found.is_whole else "what was looked at is what was written"
