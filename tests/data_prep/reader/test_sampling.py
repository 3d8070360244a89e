import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.reader import grouped_batch, order

SEED = st.integers(-(2**63), 2**64)


@settings(max_examples=40, deadline=None)
@given(seed=SEED, epoch=st.integers(0, 2**40), num_samples=st.integers(1, 3000))
def test_an_epoch_is_a_permutation(seed: int, epoch: int, num_samples: int) -> None:
    assert sorted(order(seed, epoch, num_samples).tolist()) == list(range(num_samples))


def test_the_order_never_changes_between_versions() -> None:
    assert order(0, 0, 10).tolist() == [1, 6, 5, 8, 7, 0, 9, 2, 3, 4]
    assert order(1, 2, 100_000)[:5].tolist() == [38748, 20035, 625, 41422, 81699]
    assert order(1, 2, 10, shuffle=False).tolist() == list(range(10))


def test_seed_and_epoch_both_matter_and_neighbours_are_parted() -> None:
    orders = [order(seed, epoch, 5000) for seed, epoch in itertools.product(range(3), range(3))]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 12  # of 5000, expected 1
    for one in orders:
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.06
        assert abs(np.corrcoef(one, np.arange(5000))[0, 1]) < 0.06


def test_every_sample_comes_everywhere() -> None:
    counts = np.zeros((20, 20))
    for epoch in range(1000):
        counts[np.arange(20), order(5, epoch, 20)] += 1
    chi_squared = ((counts - 50) ** 2 / 50).sum()
    assert chi_squared < 480  # 361 degrees of freedom: 4.4 standard deviations above


@settings(max_examples=40, deadline=None)
@given(
    seed=SEED,
    num_samples=st.integers(8, 400),
    per_rank=st.integers(1, 6),
    step=st.integers(0, 200),
)
def test_the_global_batch_is_the_same_for_every_world_size(seed: int, num_samples: int, per_rank: int, step: int) -> None:
    global_batch = min(8 * per_rank, num_samples // 8 * 8)

    def batch_of_all(world: int) -> list[int]:
        parts = [grouped_batch(seed, step, (num_samples,), global_batch, rank, world) for rank in range(world)]
        return [int(sample) for part in parts for sample in part]

    alone = batch_of_all(1)
    assert len(alone) == global_batch
    assert all(batch_of_all(world) == alone for world in (2, 4, 8))


@settings(max_examples=40, deadline=None)
@given(seed=SEED, num_samples=st.integers(1, 200), global_batch=st.integers(1, 50))
def test_an_epoch_of_batches_is_the_epochs_order_without_its_tail(seed: int, num_samples: int, global_batch: int) -> None:
    if num_samples < global_batch:
        return
    steps = num_samples // global_batch
    batches = [grouped_batch(seed, step, (num_samples,), global_batch, 0, 1) for step in range(2 * steps)]
    for epoch in (0, 1):
        taken = np.concatenate(batches[epoch * steps : (epoch + 1) * steps])
        assert taken.tolist() == order(seed, epoch, num_samples)[: steps * global_batch].tolist()


@pytest.mark.parametrize(
    ("num_samples", "global_batch", "rank", "world", "reason"),
    [
        (7, 8, 0, 1, r"a global batch of 8 out of \(7,\)"),
        (100, 9, 0, 2, "equal part"),
        (100, 8, 2, 2, "rank 2 of 2"),
        (100, 0, 0, 1, "global batch of 0"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused_at_once(
    num_samples: int, global_batch: int, rank: int, world: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        grouped_batch(0, 0, (num_samples,), global_batch, rank, world)


@settings(max_examples=40, deadline=None)
@given(seed=SEED, epoch=st.integers(0, 1000), groups=st.lists(st.integers(0, 60), min_size=2, max_size=5))
def test_an_epoch_of_groups_takes_whole_batches_of_each(seed: int, epoch: int, groups: list[int]) -> None:
    per_epoch = sum(samples // 6 for samples in groups)
    if not per_epoch:
        with pytest.raises(ValueError, match="cannot take an equal part"):
            grouped_batch(seed, 0, groups, 6, 0, 1)
        return
    batches = [grouped_batch(seed, step, groups, 6, 0, 1).tolist() for step in range(epoch * per_epoch, (epoch + 1) * per_epoch)]
    seen = [row for batch in batches for row in batch]
    assert len(seen) == len(set(seen))
    starts = np.cumsum([0, *groups])
    of_groups = [{int(np.searchsorted(starts, row, side="right")) for row in batch} for batch in batches]
    assert all(len(found) == 1 for found in of_groups)
    counts = [sum(starts[number] <= row < starts[number + 1] for row in seen) for number in range(len(groups))]
    assert counts == [samples // 6 * 6 for samples in groups]
