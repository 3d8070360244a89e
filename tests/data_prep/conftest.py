"""What tests of datasets leave open in their process is closed: the reader keeps its shards open, and other tests count descriptors. A
directory on a disk, where tmp_path may lie in memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.mounts import nearest_mount
from data_prep.reader import shards


@pytest.fixture(autouse=True)
def _shards_are_closed() -> Iterator[None]:
    yield
    shards.close_all()


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory on a disk, of which alone the kernel tells what memory holds: tmp_path of `make test` lies in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        mount = nearest_mount(Path(place))[1]
        if mount is None or mount.kind != "local":
            pytest.skip("/var/tmp is on no disk")
        yield Path(place)
