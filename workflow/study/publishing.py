"""study.json is written by each start of a study; of several at once, and whoever dies or hangs in between, the last one counts.

Each who changes it claims the next number: a file `.study-<n>.json` that is made once, with all that study.json is to say. study.json is a
copy of the last claim, which whoever comes makes, so that it says the same whoever was slow; and whose the results are is known from the
moment of the claim on. Claims that are not needed any more are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from base.errors import RecordError
from base.jsonfile import canonical_json, json_line, read_content, read_json
from base.publish import publish, publish_new
from base.storage_clock import now_at
from workflow.study.origin import kept_of, origin_of, refuse_other_file
from workflow.study.paths import STUDY_FILE, STUDY_SOURCE
from workflow.study.resolved import parse_resolved, read_resolved, resolved_study, text_of

if TYPE_CHECKING:
    from workflow.study.study import Study  # half of the time of the interpreter that publishes

CLAIM: Final = ".study-{number}.json"
NAME: Final = re.compile(r"\.study-([1-9][0-9]*)\.json")
TORN_S: Final = 5.0
"""How long a claim may be without its whole content: where storage has no hard links, it comes after the name."""
PAUSE_S: Final = 0.1
KEPT: Final = 2


class Claim(NamedTuple):
    """What study.json is to say, and the study file as it was typed by its owner; None: not known, of an older version."""

    study: dict[str, Any]
    typed: str | None


class Last(NamedTuple):
    """What counts now: the number of the last claim (0: none was made), its history, and it itself; None: study.json alone says it."""

    number: int
    history: tuple[dict[str, str], ...]
    claim: Claim | None


def publish_resolved(study: Study, now: datetime | None = None, *, adopt: bool = False, runs: bool = True) -> bool:
    """publish_content() of this study; `runs`: as in origin_of()."""
    return publish_content(study.results_dir, resolved_study(study), study.text, origin_of(study, adopt, runs), now)


def publish_content(
    results_dir: Path | str, content: Mapping[str, Any], typed: str, origin: Mapping[str, Any], now: datetime | None = None
) -> bool:
    """Write study.json if its content, its owner or the owner's file changed, be it a comment, adding one line to its history; False when
    it says the same already. Beside it, the owner's study file as it was typed. `origin`: see origin_of().

    Raises OSError when storage does not let us; ConfigError when the results are those of another file, unless these are to be adopted;
    RecordError when an unreadable study.json is in the way.
    """
    directory = Path(results_dir)
    digest = hashlib.sha256(canonical_json(content)).hexdigest()
    time_text = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    changed = False
    while True:
        last = _last(directory)
        before: Mapping[str, Any] = last.history[-1] if last.history else {}
        version = {"sha256": digest, **kept_of(origin, before)}
        if before and all(before.get(key) == version.get(key) for key in ("sha256", "path", "file_sha256")):
            break
        refuse_other_file(directory, origin, before)
        directory.mkdir(parents=True, exist_ok=True)
        owns = version.get("file_sha256", origin["file_sha256"]) == origin["file_sha256"]  # a copy that owns nothing leaves the owner's
        source = typed if owns else last.claim.typed if last.claim is not None else None
        claim = {"study": {**content, "history": [*last.history, {**version, "time": time_text}]}, "typed": source}
        path = directory / CLAIM.format(number=last.number + 1)
        changed |= publish_new(path, json_line(claim))  # else another was first: look again whose it is
    _settle(directory, last)
    return changed


def _settle(directory: Path, last: Last) -> None:
    """Make study.json and the study file those of the last claim, also where another one is made meanwhile."""
    _copy(directory, last)
    while max(claims_in(directory), default=0) != last.number:
        last = _last(directory)
        _copy(directory, last)
    for number in claims_in(directory)[KEPT:]:
        with contextlib.suppress(OSError):  # the next one tries again
            (directory / CLAIM.format(number=number)).unlink()


def _copy(directory: Path, last: Last) -> None:
    if last.claim is not None:
        _publish(directory / STUDY_FILE, text_of(last.claim.study))
        if last.claim.typed is not None:
            _publish(directory / STUDY_SOURCE, last.claim.typed.encode())


def _publish(target: Path, content: bytes) -> None:
    try:
        unchanged = read_content(target, max_bytes=len(content)) == content
    except RecordError:
        unchanged = False  # it is missing, longer, or no file
    if not unchanged:
        publish(target, content)


def claims_in(directory: Path) -> list[int]:
    """The numbers of the claims that there are, the last one first; a version that made none left none."""
    try:
        found = [NAME.fullmatch(path.name) for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(name[1]) for name in found if name is not None), reverse=True)


def _last(directory: Path) -> Last:
    """What counts: the last claim that can be read, or study.json where that has come further, since an older version makes no claims.
    Raises RecordError for a study.json that cannot be read."""
    while True:
        numbers = claims_in(directory)
        told = read_resolved(directory).history if (directory / STUDY_FILE).exists() else ()
        claims = (_read(directory / CLAIM.format(number=number)) for number in numbers)
        claim = next((claim for claim in claims if claim is not None and len(claim.study["history"]) >= len(told)), None)
        if numbers == claims_in(directory):
            return Last(max(numbers, default=0), told if claim is None else tuple(claim.study["history"]), claim)


def _read(path: Path) -> Claim | None:
    """A claim; None where it is not whole after TORN_S, since who made it died in that moment, or has gone."""
    give_up = time.monotonic() + TORN_S
    while True:
        try:
            value = read_json(path)
            if isinstance(value, dict) and isinstance(value.get("study"), dict) and isinstance(value.get("typed"), str | None):
                parse_resolved(value["study"], path)
                return Claim(value["study"], value["typed"])
        except RecordError:
            if not path.exists():
                return None
        if time.monotonic() >= give_up or _is_old(path):
            return None
        time.sleep(PAUSE_S)


def _is_old(path: Path) -> bool:
    """Whether nobody can be writing it any more, by the clock of its storage."""
    try:
        return now_at(path.parent) - path.lstat().st_mtime > TORN_S
    except OSError:
        return False
