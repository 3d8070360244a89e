"""The dataset for PyTorch's DataLoader: an order that is a matter of seed, epoch and place alone, and that goes on at any sample."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.build.dataset import build_dataset
from data_prep.reader import Augmentation, ReaderError, open_dataset, order
from data_prep.spec import parse_spec
from tests.data_prep.reader.small import image_dataset

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
SAMPLES = 61
RANDOM = np.random.default_rng(0)
IMAGES = [(RANDOM.integers(0, 256, (6, 5, 3), np.uint8), label) for label in range(SAMPLES)]


def batches_of(split: Any, *arguments: Any, **keys: Any) -> Any:
    from data_prep.reader.torch import Batches

    return Batches(split, *arguments, **keys)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_dataset(str(image_dataset(tmp_path_factory.mktemp("data"), IMAGES, shards=3))).split("train")


class OfLength:
    """A split of which nothing is read."""

    def __init__(self, length: int) -> None:
        self.shape: Any = (6, 5, 3)
        self.dtype: Any = np.dtype(np.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length


def global_samples(length: int, global_batch: int, world: int, numbers: range, **keys: Any) -> list[int]:
    """The samples of all ranks, batch after batch."""
    ranks = [batches_of(OfLength(length), global_batch // world, rank=rank, world_size=world, **keys) for rank in range(world)]
    return [int(sample) for number in numbers for one in ranks for sample in one.samples(number)]


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(20, 200),
    first_epoch=st.integers(0, 5),
    sample=st.integers(0, 200),
    done=st.integers(0, 30),
    sizes=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    world=st.sampled_from([1, 2, 4, 8]),
)
def test_a_training_goes_on_at_any_sample_with_any_batch_size(
    length: int, first_epoch: int, sample: int, done: int, sizes: tuple[int, int], world: int
) -> None:
    start = (first_epoch, min(sample, length))
    one = batches_of(OfLength(length), sizes[0], start=start)
    epoch, first = one.position(done)
    global_batch = sizes[1] * world
    if global_batch > length:
        return
    left = order(0, epoch, length)[first:]
    left = left[: len(left) // global_batch * global_batch]
    later = order(0, epoch + 1, length)[: length // global_batch * global_batch]
    expected = [*left.tolist(), *later.tolist()]
    numbers = range(len(expected) // global_batch)
    assert global_samples(length, global_batch, world, numbers, start=(epoch, first)) == expected
    resumed = batches_of(OfLength(length), sizes[1], world_size=world, start=(epoch, first))
    assert [*resumed.of_epoch(epoch), *resumed.of_epoch(epoch + 1)] == [*numbers]
    assert [resumed.position(number).epoch for number in numbers] == [epoch] * len(resumed) + [epoch + 1] * (len(numbers) - len(resumed))
    assert len(resumed.of_epoch(epoch - 1)) == 0


def test_what_does_not_go_together_is_refused() -> None:
    for arguments, words in (
        ({"batch_size": 9}, "rank 0 of 1 cannot take batches of 9 out of 8 samples"),
        ({"batch_size": 0}, "batches of 0"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"batch_size": 1, "start": (0, 9)}, "there is no Position"),
        ({"batch_size": 1, "start": (-1, 0)}, "there is no Position"),
        ({"batch_size": 1, "augmentation": "turn"}, "augmentation 'turn' is not known"),
    ):
        with pytest.raises(ValueError, match=words):
            batches_of(OfLength(8), **arguments)
    with pytest.raises(IndexError, match="batch -1: the first one is 0"):
        batches_of(OfLength(8), 2).samples(-1)
    differing = OfLength(8)
    differing.shape = None
    with pytest.raises(ReaderError, match="batches need images of one size"):
        batches_of(differing, 2)
    differing.dtype = np.dtype(np.int32)
    with pytest.raises(ReaderError, match="batches need rows of one length"):
        batches_of(differing, 2)
    differing.shape = (9,)
    with pytest.raises(ValueError, match="'flip' is for images, and this split has rows of token ids"):
        batches_of(differing, 2, augmentation="flip")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("augmentation", ["none", "crop-flip"])
@pytest.mark.parametrize("disk", [False, True])
def test_batches_are_the_same_for_every_number_of_workers(
    split: Any, monkeypatch: pytest.MonkeyPatch, augmentation: str, *, disk: bool
) -> None:
    from torch.utils.data import DataLoader

    from data_prep.reader import shards

    monkeypatch.setattr(shards, "IN_MEMORY", 1 << 40 if disk else 0)
    ours = batches_of(split, 8, seed=4, rank=1, world_size=2, start=(2, 5), augmentation=augmentation)
    numbers = range(2, 20)
    expected = []
    for number in numbers:
        changes = Augmentation(augmentation, 4, ours.position(number).epoch)
        expected.append(split.read_many(ours.samples(number), augment=changes))
    for workers in range(5):
        loader = DataLoader(ours, batch_size=None, sampler=numbers, num_workers=workers)
        for (images, labels), (pixels, answers) in zip(loader, expected, strict=True):
            np.testing.assert_array_equal(images.numpy(), pixels)
            assert labels.tolist() == answers.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_has_the_tensors_that_a_dataloader_has(split: Any, workers: int) -> None:
    from torch.utils.data import DataLoader

    from data_prep.reader.torch import Loader

    loader = Loader(split, 8, seed=4, rank=1, world_size=2, augmentation="crop-flip", num_workers=workers)
    loader.load_state_dict({"epoch": 2, "sample": 5, "seed": 4, "samples": SAMPLES})
    expected = batches_of(split, 8, seed=4, rank=1, world_size=2, start=(2, 5), augmentation="crop-flip")
    for epoch in (2, 3):
        found = list(loader)
        assert len(found) == len(expected.of_epoch(epoch))
        pairs = zip(found, DataLoader(expected, batch_size=None, sampler=expected.of_epoch(epoch)), strict=True)
        assert all(torch.equal(one, other) for pair in pairs for one, other in zip(*pair, strict=True))
        assert {tensor.dtype for batch in found for tensor in batch} == {torch.uint8, torch.int64}


def text(place: Path, **keys: Any) -> Any:
    """The rows of a dataset of 4,000 bytes of text."""
    (place / "in.txt").write_bytes(bytes(RANDOM.integers(0, 256, 4000, np.uint8)))
    spec = parse_spec({"source": "text", "path": "in.txt", "shards": 3, "splits": {}, **keys}, place)
    return open_dataset(str(place / build_dataset(spec, "set", place, jobs=1).path)).split("train")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_rows_of_token_ids_are_inputs_and_targets_in_the_order_of_slipway(tmp_path: Path, workers: int) -> None:
    from torch.utils.data import DataLoader

    from data_prep.reader.torch import Loader

    split = text(tmp_path, sequence_length=16)
    assert len(split) == 250
    for world in (1, 2, 4):
        loaders = [Loader(split, 8 // world, 3, rank, world, num_workers=workers) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict({"epoch": 1, "sample": 101})
        left = order(3, 1, 250)[101:]
        for step, batches in enumerate(zip(*loaders, strict=True)):
            rows = split.read_many(left[8 * step : 8 * step + 8])
            np.testing.assert_array_equal(torch.cat([inputs for inputs, _ in batches]), rows[:, :-1])
            np.testing.assert_array_equal(torch.cat([targets for _, targets in batches]), rows[:, 1:])
            assert {tensor.dtype for batch in batches for tensor in batch} == {torch.int64}
        assert (step, [loader.epoch for loader in loaders]) == (17, [2] * world)
        ours = batches_of(split, 8 // world, 3, 0, world, start=(1, 101))
        found = list(DataLoader(ours, batch_size=None, sampler=ours.of_epoch(1), num_workers=min(workers, 1)))
        assert all(map(torch.equal, found[-1], batches[0]))
        for loader in loaders:
            loader.close()


def test_a_row_that_is_filled_up_has_zeros_for_a_model_and_no_answer(tmp_path: Path) -> None:
    from data_prep.reader.torch import Loader

    inputs, targets = next(iter(Loader(text(tmp_path, buckets=[5000]), 1, num_workers=0)))
    assert (inputs[0, 4001:].tolist(), targets[0, 4001:].tolist()) == ([0] * 999, [-1] * 999)
    assert min(inputs[0, :4001].tolist()) == 0
    assert min(targets[0, :4000].tolist()) >= 0


RANK = """
import os, sys
import torch.distributed as dist
from data_prep.reader import open_dataset
from data_prep.reader.torch import Loader

dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
loader = Loader(open_dataset(sys.argv[1]).split("train"), 8, num_workers=1)
print([sample for _, labels in loader for sample in labels.tolist()])
dist.destroy_process_group()
"""


def test_a_loader_knows_rank_and_world_size_of_torch_distributed(split: Any, tmp_path: Path) -> None:
    root = Path(split.paths[0]).parent
    argv = [sys.executable, "-W", "ignore", "-c", RANK, str(root), str(tmp_path / "meet")]
    cwd = Path(__file__).parents[3]
    ranks = [subprocess.Popen([*argv, str(rank)], stdout=subprocess.PIPE, text=True, cwd=cwd) for rank in range(2)]
    found = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    batches = [one[start : start + 8] for start in range(0, 24, 8) for one in found]
    assert [sample for batch in batches for sample in batch] == order(0, 0, SAMPLES)[:48].tolist()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_images_go_one_by_one_through_a_sampler_of_the_user(split: Any) -> None:
    from torch.utils.data import DataLoader

    from data_prep.reader.torch import Images

    images = Images(split)
    assert len(images) == SAMPLES
    assert images[7][1] == 7
    wanted = [5, 60, 0, 17, 3]
    for workers in (0, 2):
        found = list(DataLoader(images, batch_size=3, sampler=wanted, num_workers=workers))
        assert [labels.tolist() for _, labels in found] == [wanted[:3], wanted[3:]]
        pixels = np.concatenate([batch.numpy() for batch, _ in found])
        np.testing.assert_array_equal(pixels, np.stack([IMAGES[index][0] for index in wanted]))


def test_the_reader_itself_needs_no_pytorch() -> None:
    code = "import sys, data_prep.reader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
