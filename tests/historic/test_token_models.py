"""Chainer trains networks that read token ids, by the tests of the others."""

import pytest

from tests.containers.frameworks.test_same_network import pytest_generate_tests
from tests.containers.frameworks.test_token_models import (
    CELLS,
    test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been,
    test_it_learns_the_same_alone_and_in_two_ranks_of_every_framework,
)

__all__ = [
    "pytest_generate_tests",
    "test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been",
    "test_it_learns_the_same_alone_and_in_two_ranks_of_every_framework",
]
pytestmark = [pytest.mark.slow, pytest.mark.long]
CASES = {
    "test_it_learns_the_same_alone_and_in_two_ranks_of_every_framework": (
        "model,ways",
        [(model, [{"framework": "chainer"}]) for model in CELLS],
    ),
    "test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been": ("model,framework", [(model, "chainer") for model in CELLS]),
}
