"""Compare what ranks tell with what is known without them: Slipway's own clock, the dataset. One warning for each contradiction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SLACK_RATIO: Final = 0.05
SLACK_S: Final = 1.0
"""Clocks that are in order differ by less."""
CLOSE_RATIO: Final = 0.2
CLOSE_S: Final = 0.1
"""The same, where lines were seen as they came: on a busy machine a line comes a little after its moment."""


def clock_warnings(found: Mapping[str, Any], ran_s: float | None, mode: str) -> list[str]:
    """`found`: `performance` and `training` of one attempt; `ran_s`: how long its ranks were there, by Slipway's own clock. Nothing can
    have taken longer, and all steps of a training no less than those of the window."""
    window_s = (found.get("performance") or {}).get("window_s")
    training = found.get("training") or {}
    train_s = training.get("train_s")
    told = {"the measured window": window_s, "all steps": train_s, "the evaluation": training.get("eval_s")}
    warnings = []
    for what, seconds in told.items():
        if ran_s is not None and seconds is not None and seconds > ran_s * (1 + SLACK_RATIO) + SLACK_S:
            warnings.append(f"the ranks tell of {seconds:.6g} s for {what}, and ran for {ran_s:.6g} s: a clock of theirs is wrong")
    if mode == "train" and window_s is not None and train_s is not None and train_s < window_s * (1 - SLACK_RATIO) - SLACK_S:
        warnings.append(f"rank 0 tells of {train_s:.6g} s for all its steps, and the measured ones alone took {window_s:.6g} s")
    return warnings


def evaluation_warnings(found: Mapping[str, Any], splits: Mapping[str, int] | None) -> list[str]:
    """An accuracy is that of a whole split; `splits`: samples of each, None where the dataset's are not known."""
    evaluation = (found.get("training") or {}).get("eval")
    if not evaluation or splits is None:
        return []
    split, samples = evaluation["split"], evaluation["samples"]
    if split not in splits:
        return [f"rank 0 tells of an evaluation on {split!r}, and the dataset has {', '.join(sorted(splits))}"]
    if samples == splits[split]:
        return []
    count = "an unknown number of" if samples is None else samples
    return [f"rank 0 tells of an evaluation on {count} samples of {split}, which has {splits[split]}"]
