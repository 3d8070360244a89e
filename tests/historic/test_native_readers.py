"""`reader: native`: Caffe and Caffe2 read what they train on by themselves, each rank its samples, and go on where they were stopped."""

import importlib
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from containers.frameworks import load_framework
from tests.containers.frameworks.programs import interpreter, stopped_and_resumed

Run = Callable[..., Any]
NATIVE = ("caffe", "caffe2")
STEPS = {"warmup": 0, "measured": 12}
COMPARED = """
import os, sys
import numpy as np, slipway_reader
from slipway_{name}.reading import native_batches
dataset = slipway_reader.open_dataset(os.environ["SLIPWAY_DATA"])
split, batch, rank, ranks = dataset.split("train"), 8, 1, 2
found = native_batches(dataset, batch, rank, ranks)
shards = [range(begin + rank, end, ranks) for begin, end in zip(split.starts, split.starts[1:])]
each = batch // len(shards)
apart = 0.0
for number in range(9):
    images, labels = next(found)
    numbers = [shard[(number * each + one) % len(shard)] for shard in shards for one in range(each)]
    ours, answers = split.read_many(numbers)
    assert labels.tolist() == answers.tolist(), number
    normalised = (ours.astype(np.float32) - np.float32(dataset.mean)) / np.maximum(np.float32(dataset.std), 1)
    apart = max(apart, np.abs(images - normalised.transpose(0, 3, 1, 2)).max())
print(apart)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize(("data", "most"), [("planes", 1e-5), ("jpegs", 0.2)])
def test_a_rank_gets_its_samples_of_every_shard(datasets: Callable[[str], Path], lib: Path, name: str, data: str, most: float) -> None:
    """With the same pixels in the same colours; of JPEGs nearly, since each decoder rounds in its own way."""
    root = datasets(data)
    before = sorted(root.rglob("*"))
    environment = {"PYTHONPATH": f"{lib}:{load_framework(name).folder}", "SLIPWAY_DATA": str(root), "GLOG_minloglevel": "2"}
    argv = [interpreter(name), "-c", COMPARED.format(name=name)]
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= most
    assert sorted(root.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_step_0_is_that_of_the_others_and_the_rest_is_the_same_for_every_number_of_ranks(run_program: Run, name: str) -> None:
    keys: Mapping[str, Any] = {"framework": name, "steps": STEPS, "global_batch_size": 16}
    plain = run_program(1, "planes", **keys)
    one = run_program(1, "planes", reader="native", **keys)
    two = run_program(2, "planes", reader="native", **keys)
    assert one.exit_codes == [0], one.stderr
    assert two.exit_codes == [0, 0], two.stderr
    assert one.losses()[0] == plain.losses()[0]
    assert one.losses()[1:] != pytest.approx(plain.losses()[1:], rel=1e-2)
    assert two.losses() == pytest.approx(one.losses(), rel=1e-4)
    assert {step["samples"] for step in two.of("step")} == {8}
    assert one.of("eval")[0]["samples"] == plain.of("eval")[0]["samples"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_a_run_that_was_stopped_reads_on_where_it_was(run_program: Run, tmp_path: Path, name: str) -> None:
    keys: Mapping[str, Any] = {"framework": name, "reader": "native", "steps": {"warmup": 2, "measured": 58}, "global_batch_size": 16}
    whole = run_program(1, "planes", **keys)
    stopped_and_resumed(run_program, tmp_path, whole, data="planes", **keys)


@pytest.mark.processes
def test_what_it_cannot_read_is_refused_in_words(datasets: Callable[[str], Path], lib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(lib))
    native, open_dataset = (
        importlib.import_module("slipway_historic_program.native"),
        importlib.import_module("slipway_reader").open_dataset,
    )
    with pytest.raises(ValueError, match="needs layout: caffe"), native.opened_shards(open_dataset(datasets("photos")), 8):
        pytest.fail("it was opened")
    planes = open_dataset(datasets("planes"))
    with pytest.raises(ValueError, match="a batch of 9 per process does not divide by its 2 shards"), native.opened_shards(planes, 9):
        pytest.fail("it was opened")
    with native.opened_shards(planes, 8) as places:
        assert [os.listdir(place) for place in places] == [["data.mdb"]] * 2
    assert not [place for place in places if Path(place).exists()]
