"""What the log of a run says of its result."""

from __future__ import annotations

from typing import Any

import pytest

from workflow.run.record.run_record import measured_words

PERFORMANCE = {"samples_per_s": 1480.4, "num_measured_steps": 200}
TRAINING = {"first_loss": 2.3026, "final_loss": 0.2134, "eval": {"split": "test", "accuracy": 0.9412}}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"performance": PERFORMANCE, "training": TRAINING}, ": 1,480 samples/s over 200 steps, loss 2.3 -> 0.213, 94.1 % of test correct"),
        ({"performance": {**PERFORMANCE, "samples_per_s": None}, "training": {"final_loss": 0.5}}, ": loss 0.5"),
        ({"performance": {"samples_per_s": 3.25, "num_measured_steps": 1}, "training": None}, ": 3.25 samples/s over 1 step"),
        ({"performance": None, "training": {"first_loss": None, "final_loss": None, "eval": None}}, ""),
        ({}, ""),
    ],
)
def test_what_was_measured_is_told(found: dict[str, Any], words: str) -> None:
    assert measured_words(found) == words


def test_a_rate_has_the_unit_of_its_program() -> None:
    assert measured_words({"performance": {**PERFORMANCE, "tokens_per_s": 95.2e3}}, "tokens") == ": 95,200 tokens/s over 200 steps"
