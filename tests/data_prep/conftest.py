"""What tests of datasets leave open in their process is closed: the reader keeps its shards open, and other tests count descriptors."""

from collections.abc import Iterator

import pytest

from data_prep.reader import shards


@pytest.fixture(autouse=True)
def _shards_are_closed() -> Iterator[None]:
    yield
    shards.close_all()
