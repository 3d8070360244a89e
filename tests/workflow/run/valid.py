"""The check of a record that was just written, which is stricter than that of its readers."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from base.errors import RecordError
from workflow.run.record import reading, step_clock
from workflow.run.record.model import RunRecord, Steps

CLOSING_RATIO: Final = 0.01
CLOSING_S: Final = 0.001
OPEN: Final = ("provenance",)
"""Objects to which a program may add keys of its own."""
GIVEN_UP: Final = (
    ("load.", "before"),
    *(("load.during.", key) for key in ("voluntary_switches_per_s", "involuntary_switches_per_s", "mhz_mean", "mhz_min")),
)
"""Objects and keys of them that earlier versions wrote."""


def validate_record(value: Any, where: str = "the record") -> RunRecord:
    """Return the record in `value`, as JSON gives it. Raises RecordError for one that readers do not believe, that has keys which this
    version does not write, or whose steps do not add up."""
    try:
        record = reading.decoded(json.dumps(value).encode())
        unknown = next(_unknown(value, msgspec.to_builtins(record)), None)
        if unknown is not None:
            raise RecordError(f"unknown key {unknown}")
        if (record.status == "ok") != (record.status_reason is None):
            raise RecordError(f"its status is {record.status}, and its status_reason {record.status_reason!r}")
        steps = {entry.name: getattr(record.steps_s, entry.name) or 0.0 for entry in msgspec.structs.fields(Steps)}
        total = sum(seconds for step, seconds in steps.items() if step not in step_clock.BESIDE)
        if abs(total - record.run_s) > max(CLOSING_RATIO * record.run_s, CLOSING_S):
            raise RecordError(f"stage to release add up to {total:g} s, run_s is {record.run_s:g} s")
    except (RecordError, ValueError) as error:
        raise RecordError(f"{where} is not a valid record: {error}") from error
    return record


def _unknown(value: Any, known: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if any(path.endswith(place) and key == gone for place, gone in GIVEN_UP):
                continue
            if key not in known:
                yield f"{path}{key}"
            elif key not in OPEN:
                yield from _unknown(inner, known[key], f"{path}{key}.")
    elif isinstance(value, list | tuple):
        for place, (inner, read) in enumerate(zip(value, known, strict=True)):
            yield from _unknown(inner, read, f"{path.rstrip('.')}[{place}].")
