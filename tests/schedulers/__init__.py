"""What each scheduler besides Slurm does, tried on real clusters; which tests are for which of them."""

import pytest

LONG = pytest.mark.long


def on(*schedulers: str, long: str = "pbs lsf") -> pytest.MarkDecorator:
    """Return the mark of a test that gets a cluster of each of these schedulers. On those named in `long` it is for `make long` only."""
    params = [pytest.param(name, marks=[LONG] if name in long else []) for name in schedulers]
    return pytest.mark.parametrize("cluster", params, indirect=True, scope="session")
