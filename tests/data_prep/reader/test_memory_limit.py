"""An epoch of a dataset that is several times larger than the memory that a program may use."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data_prep.reader import open_dataset
from tests.data_prep.reader.small import image_dataset

pytestmark = pytest.mark.slow
LIMIT = 128 << 20
SIDE = 256
SAMPLES = 2800
GROUPS = Path("/sys/fs/cgroup")

PROGRAM = f"""
import json, resource, sys
import numpy as np
from data_prep.reader import Loader, memory, open_dataset, order, shards

root, way = sys.argv[1:]
assert memory.free_memory() == {LIMIT}
if way == "through the page cache":
    shards._DIRECT = 0  # as where the file system cannot do otherwise
split = open_dataset(root).split("train")
pixels = np.random.default_rng(0).integers(0, 256, {SIDE * SIDE * 3 + SAMPLES}, np.uint8)
labels = []
for images, answers in Loader(split, 16, num_workers=2):
    for image, label in zip(images, answers):
        assert np.array_equal(image.ravel(), pixels[label : label + image.size]), label
    labels += answers.tolist()
assert labels == order(0, 0, {SAMPLES}).tolist()
split.read(0)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
(direct,) = {{shard.direct for shard in shards._open.values()}}
print(json.dumps({{"direct": direct, "read": used.ru_inblock * 512}}))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each image is a window of the same random bytes, one further than that of the image before."""
    pixels = np.random.default_rng(0).integers(0, 256, SIDE * SIDE * 3 + SAMPLES, np.uint8)
    images = [(pixels[first : first + SIDE * SIDE * 3].reshape(SIDE, SIDE, 3), first) for first in range(SAMPLES)]
    root = image_dataset(tmp_path_factory.mktemp("data"), images, shards=4)
    assert sum(path.stat().st_size for path in root.glob("*/data.mdb")) > 4 * LIMIT
    return root


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 128 MiB."""
    place, name, value = GROUPS / "memory", "memory.limit_in_bytes", str(LIMIT)
    if not place.is_dir():
        place, name = GROUPS, "memory.max"
    group = place / f"slipway-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs root and a mounted cgroup controller of memory: {error}")
    try:
        (group / name).write_text(value)
        yield group
    except OSError as error:
        pytest.skip(f"needs a cgroup controller of memory: {error}")
    finally:
        group.rmdir()


def killed(group: Path) -> int:
    """How many processes the kernel has killed for want of memory."""
    events = next(path for path in (group / "memory.oom_control", group / "memory.events") if path.exists())
    return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])


@pytest.mark.parametrize("way", ["past the page cache", "through the page cache"])
def test_an_epoch_of_more_than_fits_into_memory_is_read_once_and_right(root: Path, group: Path, way: str) -> None:
    for path in root.glob("*/data.mdb"):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            pytest.skip("this file system keeps its files in memory")
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    argv = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), sys.executable, "-c", PROGRAM, str(root), way]
    done = subprocess.run(argv, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, killed(group)) == (0, 0), done.stderr
    found = json.loads(done.stdout)
    assert found["direct"] == (way == "past the page cache")
    size = open_dataset(str(root)).manifest["bytes"]
    assert 0.9 * size < found["read"] < 1.2 * size
