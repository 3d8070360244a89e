"""The check of a record that was just written, which is stricter than that of its readers."""

import json
from typing import Any, Final

import msgspec

from base.errors import RecordError
from workflow.run.record import reading, step_clock
from workflow.run.record.model import RunRecord, Steps

CLOSING_RATIO: Final = 0.01
CLOSING_S: Final = 0.001


def validate_record(value: Any, where: str = "the record") -> RunRecord:
    """Return the record in `value`, as JSON gives it. Raises RecordError for one that readers do not believe, that has keys which this
    version does not write, or whose steps do not add up."""
    try:
        record = reading.decoded(json.dumps(value).encode())
        unknown = value.keys() - {entry.encode_name for entry in msgspec.structs.fields(RunRecord)}
        if unknown:
            raise RecordError(f"unknown keys {unknown}")
        if (record.status == "ok") != (record.status_reason is None):
            raise RecordError(f"its status is {record.status}, and its status_reason {record.status_reason!r}")
        steps = {entry.name: getattr(record.steps_s, entry.name) or 0.0 for entry in msgspec.structs.fields(Steps)}
        total = sum(seconds for step, seconds in steps.items() if step not in step_clock.BESIDE)
        if abs(total - record.run_s) > max(CLOSING_RATIO * record.run_s, CLOSING_S):
            raise RecordError(f"stage to release add up to {total:g} s, run_s is {record.run_s:g} s")
    except (RecordError, ValueError) as error:
        raise RecordError(f"{where} is not a valid record: {error}") from error
    return record
