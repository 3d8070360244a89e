"""The campaign of tests/data_prep/staging/corruption.py, short: no flipped bit is read by anybody."""

from __future__ import annotations

import pytest

from tests.data_prep.staging.corruption import CAUGHT, PLACES, WRONG, campaign

pytestmark = pytest.mark.slow


def test_no_flipped_bit_is_read_by_anybody() -> None:
    found = campaign(12 * len(PLACES), 1, list(PLACES))
    assert not [name for name, verdicts in found.items() if verdicts[WRONG]]
    assert all(verdicts[CAUGHT] for verdicts in found.values() if verdicts)
