"""The files of the study's own programs as they are kept beside its results: whether they are what the records name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from base.errors import SlipwayError, StorageError
from base.limited import call_limited
from containers.program_folder import look_at
from workflow.report.verified import Verified
from workflow.report.watched import SILENCE_S
from workflow.study.paths import kept_program

DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def verify_programs(results: Path, digests: Iterable[str], until: float | None = None) -> Verified:
    """Read what is kept of each digest. `until`: by the monotonic clock; then none is begun. None is waited for longer than SILENCE_S."""
    total = Verified()
    for digest in sorted(set(digests)):
        if total.left_programs or (until is not None and time.monotonic() >= until):
            total.left_programs += 1
            continue
        place = kept_program(results, digest)
        try:
            problem = call_limited(f"the files of a program in {place}", why_not_kept, str(place), digest, timeout_s=SILENCE_S)
        except StorageError as error:
            total.left_programs += 1
            problem = str(error)
        if problem is not None:
            total.findings.append(f"{place}: {problem}")
    return total


def program_digests(record: Mapping[str, Any]) -> Iterator[str]:
    """That of the folder of the record's own program, where it has one; what is no digest is nobody's path."""
    digest = (record["provenance"] or {}).get("program_digest")
    if isinstance(digest, str) and DIGEST.fullmatch(digest):
        yield digest


def why_not_kept(place: str, digest: str) -> str | None:
    """What speaks against it that the files in `place` are those of `digest`; None: nothing."""
    path = Path(place)
    if path.is_symlink() or path.parent.is_symlink():
        return "a link, and nobody of ours made one"
    if not path.is_dir():
        return "it is missing: the files that the program had in runs with this digest (an earlier version kept none)"
    try:
        found = look_at(path, executed=False).digest
    except StorageError:
        raise
    except SlipwayError as error:
        return str(error)
    return None if found == digest else f"its files are not those that ran: their digest is {found[:12]} now"
