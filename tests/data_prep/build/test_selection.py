"""Pure decisions of the plan: order, duplicates, bounds, fractions, shards; and exact statistics."""

import random
from pathlib import Path

import numpy as np
import pytest

from base.errors import DatasetError
from data_prep.build.selection import (
    KEPT,
    STATISTICS_SAMPLES,
    Listing,
    Rejections,
    ShardSample,
    by_content,
    in_order,
    is_measured,
    measured_samples,
    read_samples,
    record_of,
    shards_per_split,
    slices,
    too_many,
    unpack_sample,
    write_samples,
)
from data_prep.hashing import hash_file
from data_prep.sources.types import ListedSample

HASHES = np.random.default_rng(1).integers(0, 2**64, 10_000, dtype=np.uint64)


def listing(names: list[str], label: str = "a") -> Listing:
    made = Listing()
    for name in names:
        made.add(ListedSample(name, label, 1), 0)
    return made


def test_too_many_keeps_the_first_of_each_class_and_origin() -> None:
    names = [str(index) for index in range(30)]
    keys = listing(names).keys
    labels, origins = np.arange(30) % 3, np.arange(30) // 15
    kept = np.ones(30, bool)
    kept[0] = False
    beyond = too_many(keys, labels, origins, kept, 2)
    left = kept & ~beyond
    assert all(left[(labels == label) & (origins == origin)].sum() == 2 for label in range(3) for origin in range(2))
    order = in_order(keys)
    for label in range(3):
        group = [p for p in order if labels[p] == label and origins[p] == 1]
        assert [p for p in group if left[p]] == group[:2]
    assert not too_many(keys, labels, origins, np.zeros(30, bool), 1).any()


def test_fractions_are_met_and_stay_when_images_are_added() -> None:
    parts = by_content(HASHES, {"test": 0.1, "validation": 0.2})
    assert abs(parts["test"].mean() - 0.1) < 0.02
    assert abs(parts["validation"].mean() - 0.2) < 0.02
    assert not (parts["test"] & parts["validation"]).any()
    fewer = by_content(HASHES[:5000], {"test": 0.1, "validation": 0.2})
    assert np.array_equal(fewer["test"], parts["test"][:5000])


def test_a_small_split_gets_one_image_and_train_keeps_one() -> None:
    parts = by_content(HASHES[:3], {"a": 1e-9, "b": 1e-9})
    assert parts["a"].sum() == parts["b"].sum() == 1
    with pytest.raises(ValueError, match="too few"):
        by_content(HASHES[:2], {"a": 0.1, "b": 0.1})
    with pytest.raises(ValueError, match="too few"):
        by_content(np.repeat(HASHES[:1], 5), {"a": 0.1})
    with pytest.raises(ValueError, match="too few"):
        by_content(np.zeros(3, np.uint64), {"a": 0.5})


def test_shards_follow_the_samples_and_each_split_has_one() -> None:
    assert shards_per_split({"train": 90, "test": 10}, 10) == {"train": 9, "test": 1}
    assert shards_per_split({"train": 1_000_000, "test": 1}, 2) == {"train": 1, "test": 1}
    assert shards_per_split({"train": 3, "test": 0}, 4) == {"train": 3, "test": 1}
    with pytest.raises(ValueError, match="each needs one"):
        shards_per_split({"train": 1, "test": 1}, 1)
    for count in range(40):
        for parts in range(1, 9):
            runs = slices(count, parts)
            assert [start for start, _ in runs] == [0, *(end for _, end in runs[:-1])]
            assert runs[-1][1] == count
            assert max(end - start for start, end in runs) - min(end - start for start, end in runs) <= 1


def test_lists_of_samples_hold_any_name(tmp_path: Path) -> None:
    names = ["plain", "new\nline", "\udcff\udcfe", "ü" * 40, *(f"{index}.jpg" for index in range(3000))]
    found = [
        ListedSample(name, "b" if index % 2 else "a", 5, 7**20, (3, "key\xff") if index % 3 else ()) for index, name in enumerate(names)
    ]
    records = [record_of(one, index % 5) for index, one in enumerate(found)]
    assert [unpack_sample(record, one.label) for record, one in zip(records, found, strict=True)] == found
    with (tmp_path / "list").open("wb") as file:
        write_samples(file, records, [index % 2 for index in range(len(names))])
    digest = hash_file(tmp_path / "list").blake3
    expected = [ShardSample(index % 2, index % 5, one) for index, one in enumerate(found)]
    assert list(read_samples(tmp_path / "list", ("a", "b"), digest)) == expected
    with pytest.raises(DatasetError, match="is damaged"):
        next(read_samples(tmp_path / "list", ("a", "b"), "0" * 64))


def test_the_sample_for_statistics_has_its_size_and_lies_in_all_of_train() -> None:
    for samples, measured in ((1, 1), (7, 3), (1001, 1000), (20_000, STATISTICS_SAMPLES), (5, 5), (10_007, 999)):
        chosen = [position for position in range(samples) if is_measured(position, samples, measured)]
        assert len(chosen) == measured
        assert max(np.diff([-1, *chosen, samples]), default=0) <= samples // measured + 1


def test_small_images_are_all_measured_and_large_ones_by_the_thousand() -> None:
    assert measured_samples(1617, 1617 * 64) == 1617
    assert measured_samples(20_000, 20_000 * 22_800) == 1000
    assert measured_samples(10, 10**9) == 10
    assert measured_samples(50_000, 50_000 * 3072) == (16 << 20) // 3072


def test_rejections_keep_the_first_names_whatever_the_order() -> None:
    names = [f"{index:06d}" for index in range(6 * KEPT)]
    lists = []
    for seed in range(2):
        rejections = Rejections()
        for name in random.Random(seed).sample(names, len(names)):
            rejections.add(name, "why")
        assert rejections.count == len(names)
        lists.append(rejections.to_json())
    assert lists[0] == lists[1] == [{"name": name, "reason": "why"} for name in names[:KEPT]]
