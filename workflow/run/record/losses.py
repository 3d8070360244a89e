"""The loss curve of a record: most of its bytes, and needed only where a curve is drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workflow.run.record.kinds import SIGNED, NotBelieved, shown

FIRST_STEPS: Final = 5
"""So many are kept whatever the length of the run: two programs that train the same network agree in them to the rounding of sums."""
_BEGIN: Final = re.compile(rb'"losses"\s*:\s*\[')
_PAIRS: Final = re.compile(rb"\[(?:\[,\](?:,\[,\])*)?\]")
_NUMBERS: Final = b"0123456789.eE+- \t\r\n"


def without_losses(content: bytes) -> bytes:
    """The record's text with an empty curve, if it is one of pairs of numbers; else as it is, for whoever reads it to refuse."""
    place = content.find(b'"losses"')  # inside of JSON text a quote has a backslash before it
    begin = _BEGIN.match(content, place) if place >= 0 else None
    if begin is None:
        return content
    next_key = content.find(b'"', begin.end())
    end = content.rfind(b"]", begin.end(), next_key if next_key >= 0 else len(content))
    if end < 0 or not _PAIRS.fullmatch(content[begin.end() - 1 : end + 1].translate(None, _NUMBERS)):
        return content
    return content[: begin.end()] + content[end:]


def curve(record: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(step, loss) of a record read whole. Raises NotBelieved."""
    training = record.get("training")
    if training is None:
        return []
    if not isinstance(training, dict):
        raise NotBelieved(f"training: found {shown(training)}, expected an object")
    return _pairs(training, "losses")


def first_losses(record: Mapping[str, Any]) -> dict[int, float]:
    """Step -> loss of the first FIRST_STEPS steps, of a record read whole; of one of an earlier version those that its curve has. Raises
    NotBelieved."""
    told = curve(record)
    training = record.get("training")
    pairs = told if training is None or training.get("first_losses") is None else _pairs(training, "first_losses")
    return {step: loss for step, loss in pairs if step < FIRST_STEPS}


def first_of(flat: Sequence[float] | None) -> dict[int, float] | None:
    """The same of a row of records.parquet, where pairs lie one after the other; None where there is none."""
    return {int(step): loss for step, loss in zip(flat[::2], flat[1::2], strict=True) if step < FIRST_STEPS} if flat else None


def _pairs(training: Mapping[str, Any], key: str) -> list[tuple[int, float]]:
    losses = training.get(key)
    if losses is None:
        return []
    if not isinstance(losses, list):
        raise NotBelieved(f"training.{key}: found {shown(losses)}, expected a list")
    return [_pair(entry, key) for entry in losses]


def _pair(entry: Any, key: str) -> tuple[int, float]:
    if isinstance(entry, list) and len(entry) == 2:
        step, loss = entry
        if type(step) is int and step >= 0 and type(loss) in (int, float) and abs(loss) <= SIGNED.high:
            return step, float(loss)
    raise NotBelieved(f"training.{key}: found {str(entry)[:60]}, expected [step, loss]")
