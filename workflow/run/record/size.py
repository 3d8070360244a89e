"""Shorten a record that is larger than its readers accept. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from base.jsonfile import json_text
from workflow.run.record.attempts import MAX_BYTES

SEAL_BYTES: Final = 1 << 10
"""Left for what is added when it is written."""
MOST_BYTES: Final = MAX_BYTES - SEAL_BYTES
MOST_SAID: Final = 2000


SHORTENED: Final = "it is without long values of provenance"


def is_long(value: Any) -> bool:
    """Whether a record that is too large goes without this value of its provenance."""
    return len(json_text(value)) > MOST_SAID


def was_shortened(warning: str) -> bool:
    """Whether it is the warning of such a record."""
    return warning.startswith("this record would have more than ") and SHORTENED in warning


def fitting(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record as it is, where it has at most `MOST_BYTES`. Else without long values of its provenance, and with as many of its files as
    have room; a warning says so. What a run left is never a reason to have no readable result of it."""
    if len(json_text(record)) <= MOST_BYTES:
        return record
    short = {key: value for key, value in record["provenance"].items() if not is_long(value)}
    warning = f"this record would have more than {MOST_BYTES} bytes: {SHORTENED}"
    record = {**record, "provenance": short, "warnings": [warning, *record["warnings"]]}
    left = MOST_BYTES - len(json_text({**record, "files": []})) - SEAL_BYTES
    kept = []
    for file in record["files"]:
        left -= len(json_text([[file]]))
        if left >= 0:
            kept.append(file)
    if len(kept) == len(record["files"]):
        return record
    record["warnings"][0] = f"{warning}, and names {len(kept)} of {len(record['files'])} files"
    return {**record, "files": kept}
