"""What the log of a run says of its result."""

import pytest
from msgspec.structs import replace

from workflow.run.record.model import Evaluation, Performance, Training
from workflow.run.record.rate import summarise
from workflow.run.record.run_record import Measurements, measured_words

PERFORMANCE = Performance(samples_per_s=1480.4, num_measured_steps=200, step_s=summarise([1.0]))
TRAINING = Training(first_loss=2.3026, final_loss=0.2134, eval=Evaluation(split="test", accuracy=0.9412))


@pytest.mark.parametrize(
    ("performance", "training", "words"),
    [
        (PERFORMANCE, TRAINING, ": 1,480 samples/s over 200 steps, loss 2.3 -> 0.213, 94.1 % of test correct"),
        (replace(PERFORMANCE, samples_per_s=None), Training(final_loss=0.5), ": loss 0.5"),
        (replace(PERFORMANCE, samples_per_s=3.25, num_measured_steps=1), None, ": 3.25 samples/s over 1 step"),
        (None, Training(), ""),
        (None, None, ""),
    ],
)
def test_what_was_measured_is_told(performance: Performance | None, training: Training | None, words: str) -> None:
    assert measured_words(Measurements(performance=performance, training=training)) == words


def test_a_rate_has_the_unit_of_its_program() -> None:
    found = Measurements(performance=replace(PERFORMANCE, tokens_per_s=95.2e3))
    assert measured_words(found, "tokens") == ": 95,200 tokens/s over 200 steps"
