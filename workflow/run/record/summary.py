"""What a run measured, in the words of its log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from base.units import counted


def measured_words(found: Mapping[str, Any], unit: str = "samples") -> str:
    """Rate, loss and accuracy of what `record.measured` says, as far as they were measured; with a colon before, or nothing. `unit`: what
    the rate counts, samples or tokens."""
    parts = list(_parts(found.get("performance") or {}, found.get("training") or {}, unit))
    return f": {', '.join(parts)}" if parts else ""


def _parts(performance: Mapping[str, Any], training: Mapping[str, Any], unit: str) -> Iterator[str]:
    rate, steps = performance.get(f"{unit}_per_s"), performance.get("num_measured_steps")
    if rate is not None and steps is not None:
        yield f"{_number(rate)} {unit}/s over {counted(steps, 'step')}"
    first, final = training.get("first_loss"), training.get("final_loss")
    if final is not None:
        yield f"loss {_number(final)}" if first is None else f"loss {_number(first)} -> {_number(final)}"
    evaluation = training.get("eval") or {}
    if evaluation.get("accuracy") is not None:
        yield f"{100 * evaluation['accuracy']:.1f} % of {evaluation.get('split') or 'the evaluation'} correct"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
