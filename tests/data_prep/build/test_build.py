"""From a source to a published dataset: closed-form checks, the same digest from everywhere, and going on after a stop."""

import fcntl
import gzip
import json
import os
import shutil
import threading
import time
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from base.errors import ConfigError, DatasetError
from data_prep.build.locks import own_part, remove_dead_parts
from data_prep.build.selection import STATISTICS_SAMPLES
from data_prep.build.shard import KIND as IMAGES
from data_prep.build.steps import read_dataset_file, shard_path
from data_prep.file_set import verify_dataset
from data_prep.manifest import to_bytes
from data_prep.reader import open_dataset
from data_prep.reader.errors import DecodeError
from data_prep.spec import parse_spec
from tests.data_prep.build.corpus import (
    build,
    build_in,
    class_folders,
    encoded,
    pixels,
    prepared,
    read_back,
    reasons,
    stored,
    tar_of,
    write,
)

MADE = {"source": "synthetic", "samples": 40, "classes": 4, "size": 12, "shards": 4}


def folder(path: Path, **values: Any) -> dict[str, Any]:
    return {"source": "folder", "path": str(path), "splits": {}, "shards": 1, **values}


def test_statistics_in_closed_form(tmp_path: Path) -> None:
    for index, grey in enumerate((0, 100, 200, 255)):
        write(tmp_path / "p" / "c" / f"{index}.png", encoded(np.full((4, 6, 3), grey, np.uint8)))
    write(tmp_path / "t" / "c" / "9.png", encoded(np.full((4, 6, 3), 7, np.uint8)))
    spec = folder(tmp_path / "p", splits={"test": {"path": str(tmp_path / "t")}}, shards=2)
    root, manifest = build(tmp_path, spec)
    values = (0, 100, 200, 255)
    assert manifest.mean == (sum(values) / 4,) * 3  # of train alone
    assert manifest.std == pytest.approx((np.std(values),) * 3, rel=1e-15)
    assert manifest.size == (4, 6)
    assert (manifest.splits["train"].samples, manifest.splits["test"].samples, manifest.samples) == (4, 1, 5)
    assert manifest.bytes == sum(path.stat().st_size for path in root.glob("*/data.mdb"))
    verify_dataset(root)


def test_fractions_by_content_keep_copies_together(tmp_path: Path) -> None:
    for index in range(40):
        content = encoded(pixels(index))
        write(tmp_path / "p" / "a" / f"{index}.png", content)
        write(tmp_path / "p" / "b" / f"copy {index}.png", content)
    root, manifest = build(tmp_path, folder(tmp_path / "p", splits={"test": 0.2, "validation": 0.2}, shards=6))
    found = {split: {image.tobytes() for image, _ in read_back(root, split)} for split in manifest.splits}
    assert sum(len(images) for images in found.values()) == 40
    assert manifest.samples == 80
    assert all(len(images) > 2 for images in found.values())


def test_classes_are_mixed_within_and_between_shards(tmp_path: Path) -> None:
    root, manifest = build(tmp_path, folder(class_folders(tmp_path / "p", {"a": 30, "b": 30}), shards=3))
    labels = [label for _, label in read_back(root)]
    assert labels != sorted(labels)
    for start in (0, 20, 40):
        assert set(labels[start : start + 20]) == {"a", "b"}
    assert [shard.samples for shard in manifest.shards] == [20, 20, 20]


def test_the_digest_does_not_depend_on_place_or_order(tmp_path: Path) -> None:
    names = []
    for number, order in enumerate((1, -1)):
        for index in range(12)[::order]:
            write(tmp_path / str(number) / "p" / "ab"[index % 2] / f"{index}.png", encoded(pixels(index)))
        spec = folder(tmp_path / str(number) / "p", splits={"test": 0.3}, shards=3)
        names.append(build(tmp_path / str(number), spec)[0].name)
    assert names[0] == names[1]
    shutil.copytree(tmp_path / "0" / "p", tmp_path / "2" / "elsewhere")
    (tmp_path / "2" / "elsewhere" / "a" / "0.png").write_bytes(encoded(pixels(99)))
    assert build(tmp_path / "2", folder(tmp_path / "2" / "elsewhere", splits={"test": 0.3}, shards=3))[0].name != names[0]


def test_the_golden_digest_of_synthetic_images(tmp_path: Path) -> None:
    """Another digest means that everybody's datasets are built again: never by accident."""
    assert build(tmp_path, MADE)[0].name == "set-fe766fad2718"


def test_bounds_per_class(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"many": 9, "some": 3, "one": 1})
    place, manifest = build(tmp_path, folder(root, per_class={"min": 2, "max": 4}))
    assert manifest.classes == ("many", "some")
    assert manifest.left_out_classes == ("one",)
    assert manifest.splits["train"].class_counts == (4, 3)
    again, _ = build(tmp_path / "again", folder(root, per_class={"min": 2, "max": 4}))
    assert again.name == place.name
    _, one_class = build(tmp_path / "one", folder(root, per_class={"min": 5}))
    assert one_class.classes == ("many",)


def test_jpeg_files_are_kept_or_made_again(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"a": 3}, kind="JPEG", size=16)
    files = {path.read_bytes() for path in root.rglob("*.jpeg")}
    kept, manifest = build(tmp_path, folder(root, encoding="jpeg"))
    assert set(stored(kept)) == files
    assert (manifest.encoding, manifest.size) == ("jpeg", (16, 16))
    decoded = np.stack([image for image, _ in read_back(kept)]).reshape(-1, 3).astype(int)
    assert manifest.mean == tuple(column.sum() / len(decoded) for column in decoded.T)
    write(root / "a" / "small.png", encoded(pixels(5, 9, 7)))
    mixed, manifest = build(tmp_path / "mixed", folder(root, encoding="jpeg"))
    assert manifest.size is None
    assert files < set(stored(mixed))
    _, resized = build(tmp_path / "resized", folder(root, encoding="jpeg", size=[8, 12], channels="grey", quality=80))
    assert (resized.size, resized.channels, resized.source["quality"]) == ((8, 12), 1, 80)


def photographs(path: Path, count: int) -> Path:
    for index in range(count):
        write(path / "ab"[index % 2] / f"{index}.jpeg", encoded(pixels(index, 4, 4).repeat(8, 0).repeat(8, 1), "JPEG"))
    return path


@pytest.mark.slow
def test_headers_are_checked_by_default_and_all_is_decoded_on_request(tmp_path: Path) -> None:
    root = photographs(tmp_path / "p", STATISTICS_SAMPLES + 200)
    names = sorted(root.rglob("*.jpeg"))
    cut, hurt, useless = names[7], names[500:700], names[700:900]
    cut.write_bytes(cut.read_bytes()[:-9])
    for path in hurt:  # a restart mark inside of the only scan: decoders that are not strict take the rest of the picture
        content = bytearray(path.read_bytes())
        content[-30:-28] = b"\xff\xd3"
        path.write_bytes(content)
    for path in useless:  # no table of codes at all
        content = bytearray(path.read_bytes())
        at = content.index(b"\xff\xc4") + 5
        content[at : at + 16] = b"\xff" * 16
        path.write_bytes(content)
    for path in names:  # a comment as large as a photograph: of small files all would be measured
        content = path.read_bytes()
        path.write_bytes(content[:2] + b"\xff\xfe\xff\xff" + bytes(65533) + content[2:])
    spec = folder(root, encoding="jpeg", shards=5)
    files = {path.read_bytes() for path in names}

    place, manifest = build(tmp_path / "header", spec)
    measured = [name for name in reasons(manifest) if name != str(cut.relative_to(root))]
    assert 100 < len(measured) < 200, "those of the sample are decoded"
    assert (manifest.check, manifest.samples) == ("header", len(names) - 1 - len(measured))
    assert STATISTICS_SAMPLES - 1 <= (manifest.statistics_samples or 0) + len(measured) <= STATISTICS_SAMPLES
    assert 100 < len(set(stored(place)) - files) < 200, "encoded anew, as far as they could be read"
    again, other = build(tmp_path / "again", {**spec, "shards": 1})
    assert (other.mean, other.std, other.rejected) == (manifest.mean, manifest.std, manifest.rejected)
    assert again.name != place.name

    whole, decoded = build(tmp_path / "decode", {**spec, "check": "decode", "statistics": "all"})
    assert (decoded.check, decoded.statistics_samples, decoded.samples) == ("decode", None, len(names) - 1 - len(useless))
    assert decoded.mean == pytest.approx(manifest.mean, abs=2)
    assert len(set(stored(whole)) - files) == len(hurt)

    broken = next(index for index, data in enumerate(stored(place)) if b"\xff" * 16 in data)
    split = open_dataset(place).split("train")
    shard = bisect_right(split.starts, broken) - 1
    with pytest.raises(DecodeError, match=rf"shard-0000{shard}\.lmdb, sample {broken - split.starts[shard]:08d}: "):
        split.read(broken)


def test_the_sample_for_statistics_is_the_same_whatever_the_number_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.build.selection.STATISTICS_SAMPLES", 10)
    monkeypatch.setattr("data_prep.build.selection.STATISTICS_BYTES", 0)
    one, four = (build(tmp_path / str(shards), {**MADE, "splits": {}, "shards": shards})[1] for shards in (1, 4))
    assert one.statistics_samples == four.statistics_samples == 10
    assert one.mean == four.mean


def test_statistics_without_one_usable_image_are_an_error(tmp_path: Path) -> None:
    root = photographs(tmp_path / "p", 4)
    plan_dir = prepared(tmp_path, folder(root, encoding="jpeg"))
    plan = json.loads((plan_dir / "plan.json").read_text())
    (plan_dir / "plan.json").write_text(json.dumps({**plan, "measured": 0}))
    with pytest.raises(DatasetError, match="set statistics: all"):
        build_in(plan_dir)


def test_raw_images_of_two_sizes_ask_for_a_size(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"a": 3})
    write(root / "a" / "other.png", encoded(pixels(5, 9, 7)))
    for shards in (1, 4):
        with pytest.raises(DatasetError, match="set size"):
            build(tmp_path / str(shards), folder(root, shards=shards))
    _, manifest = build(tmp_path / "ok", folder(root, size=8))
    assert manifest.samples == 4


def test_strict_refuses_what_is_otherwise_listed(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"a": 3})
    write(root / "a" / "cut.png", encoded(pixels(5))[:-40])
    with pytest.raises(DatasetError, match=r"a/cut\.png: truncated PNG"):
        build(tmp_path / "1", folder(root, strict=True))
    write(root / "notes.txt", b"x")
    with pytest.raises(DatasetError, match=r"notes\.txt: lies outside"):
        build(tmp_path / "2", folder(root, strict=True))
    with pytest.raises(DatasetError, match="max_rejected_ratio"):
        build(tmp_path / "3", folder(root, max_rejected_ratio=0.3))
    _, manifest = build(tmp_path / "4", folder(root, max_rejected_ratio=0.4))
    assert reasons(manifest) == {"a/cut.png": "truncated PNG", "notes.txt": "lies outside the class folders"}


def test_a_split_without_one_usable_image_is_an_error(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"a": 3})
    write(tmp_path / "t" / "a" / "cut.png", encoded(pixels(5))[:-40])
    with pytest.raises(DatasetError, match="no usable image is left in split test"):
        build(tmp_path, folder(root, splits={"test": {"path": str(tmp_path / "t")}}, shards=2))


def test_shards_without_samples_are_left_out(tmp_path: Path) -> None:
    root, manifest = build(tmp_path, folder(class_folders(tmp_path / "p", {"a": 2, "b": 1}), splits={"test": 0.1}, shards=8))
    assert [shard.samples for shard in manifest.shards] == [1, 1, 1]
    assert [shard.name for shard in manifest.shards] == ["shard-00000.lmdb", "shard-00001.lmdb", "shard-00002.lmdb"]
    assert len(read_back(root)) == 3


def times(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file() and path.parent.name != "locks"}


def test_a_second_build_does_nothing(tmp_path: Path) -> None:
    root, _ = build(tmp_path, MADE)
    build_dir = tmp_path / "datasets" / ".build" / "set-0"
    before = times(tmp_path / "datasets")
    build_in(prepared(tmp_path, MADE))
    assert before == times(tmp_path / "datasets")
    built = read_dataset_file(build_dir)
    assert (built.path, built.samples) == (root.name, 40)
    assert json.loads((build_dir / "dataset.json").read_text()).keys() == {"name", "digest", "path", "samples", "bytes", "spec12"}
    assert not [path.name for path in build_dir.iterdir() if path.name.endswith(".lmdb") or path.name.startswith(".")]


def test_finished_shards_are_kept_and_the_rest_is_made(tmp_path: Path) -> None:
    expected, _ = build(tmp_path / "whole", MADE)
    build_dir = prepared(tmp_path, MADE)
    for index in range(4):
        IMAGES.build(build_dir, index)
    kept = shard_path(build_dir, 0) / "data.mdb"
    inode = kept.stat().st_ino
    shutil.rmtree(shard_path(build_dir, 1))  # a receipt without its shard
    (build_dir / "shard-00002.json").unlink()  # a shard without its receipt
    (build_dir / "shard-00003.json").write_text("{torn")
    part = build_dir / ".shard-00001.lmdb.part-0123abcd-000000000000"
    write(part / "data.mdb", b"half")
    os.utime(part / "data.mdb", (0, 0))
    os.utime(part, (0, 0))
    built = build_in(build_dir)
    assert built.path == expected.name
    assert (tmp_path / "datasets" / built.path / "shard-00000.lmdb" / "data.mdb").stat().st_ino == inode
    verify_dataset(tmp_path / "datasets" / built.path)
    assert not part.exists()


def test_a_shard_of_another_plan_is_replaced(tmp_path: Path) -> None:
    build_dir = prepared(tmp_path, MADE)
    write(shard_path(build_dir, 0) / "data.mdb", b"of an older plan")
    built = build_in(build_dir)
    verify_dataset(tmp_path / "datasets" / built.path)


def test_parts_of_the_living_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "shard-00000.lmdb"
    with own_part(target) as part:
        remove_dead_parts(target)
        assert part.exists()
        descriptor = os.open(part, os.O_RDONLY)
        os.close(descriptor)
        stranger = tmp_path / ".shard-00000.lmdb.part-00000000-000000000000"
        stranger.mkdir()
        remove_dead_parts(target)
        assert stranger.exists()  # another host's, touched a moment ago
    assert not part.exists()
    part.mkdir()
    remove_dead_parts(target)
    assert not part.exists()


@pytest.mark.parametrize("skew_s", [-7200, 7200])
def test_the_clock_of_this_machine_says_nothing_of_a_part_on_storage(tmp_path: Path, skew_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_s)
    old, new = (tmp_path / f".shard-00000.lmdb.part-00000000-{number}" for number in ("000000000000", "000000000001"))
    for part in (old, new):
        part.mkdir()
    os.utime(old, (real() - 5400,) * 2)
    remove_dead_parts(tmp_path / "shard-00000.lmdb")
    assert [path.name for path in tmp_path.iterdir()] == [new.name]


def test_a_dataset_that_was_removed_is_built_again(tmp_path: Path) -> None:
    content = tar_of({f"{name}/{i}.png": encoded(pixels(10 * k + i)) for k, name in enumerate("ab") for i in range(3)})
    spec = {"source": "tar", "path": str(write(tmp_path / "t.tgz", gzip.compress(content))), "splits": {}, "shards": 2}
    root, _ = build(tmp_path, spec)
    shutil.rmtree(root)
    again, _ = build(tmp_path, spec)  # what was unpacked is gone, too
    assert again == root
    (root / "manifest.json").chmod(0o600)
    (root / "manifest.json").write_text("{}")
    with pytest.raises(DatasetError, match="has been changed"):
        IMAGES.finish(tmp_path / "datasets" / ".build" / "set-0", tmp_path / "datasets")


def test_a_source_that_changes_is_named(tmp_path: Path) -> None:
    content = tar_of({f"a/{i}.png": encoded(pixels(i)) for i in range(3)})
    path = write(tmp_path / "t.tar", content)
    build_dir = prepared(tmp_path, {"source": "tar", "path": str(path), "splits": {}, "shards": 1})
    path.write_bytes(content + bytes(512))
    with pytest.raises(DatasetError, match=r"t\.tar has changed"):
        IMAGES.build(build_dir, 0)


def test_a_build_directory_belongs_to_one_specification(tmp_path: Path) -> None:
    build_dir = prepared(tmp_path, MADE)
    with pytest.raises(DatasetError, match="belongs to another dataset"):
        IMAGES.plan(parse_spec({**MADE, "seed": 9}, tmp_path), "set", build_dir)
    (build_dir / "plan.json").write_text('{"schema": "slipway.plan/0"}')
    with pytest.raises(DatasetError, match="not a plan of this version"):
        IMAGES.read_plan(build_dir)
    with pytest.raises(DatasetError, match="parts 0 to 3"):
        IMAGES.build(prepared(tmp_path / "b", MADE), 4)


def test_two_shard_jobs_at_once_do_the_work_once(tmp_path: Path) -> None:
    build_dir = prepared(tmp_path, MADE)
    lock = os.open(build_dir / "locks" / "shard-00000", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    waiting = threading.Thread(target=IMAGES.build, args=(build_dir, 0))
    waiting.start()  # waits for the lock, then finds the shard done
    other = prepared(tmp_path / "other", MADE)
    IMAGES.build(other, 0)
    shutil.copytree(shard_path(other, 0), shard_path(build_dir, 0))
    shutil.copy(other / "shard-00000.json", build_dir / "shard-00000.json")
    inode = (shard_path(build_dir, 0) / "data.mdb").stat().st_ino
    os.close(lock)
    waiting.join(30)
    assert (shard_path(build_dir, 0) / "data.mdb").stat().st_ino == inode


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    spec = parse_spec(folder(class_folders(tmp_path / "p", {"a": 70})), tmp_path)
    build_dir = tmp_path / "b"
    IMAGES.plan(spec, "set", build_dir)
    IMAGES.build(build_dir, 0, lambda done, total: seen.append((done, total)))
    assert seen == [(64, 70), (70, 70)]


@pytest.mark.parametrize(
    "values", [{}, {"layout": "caffe"}, {"encoding": "jpeg"}, {"encoding": "jpeg", "channels": "grey", "size": 8}, {"channels": "grey"}]
)
def test_the_reader_delivers_what_was_measured(tmp_path: Path, values: dict[str, Any]) -> None:
    root = class_folders(tmp_path / "p", {"a": 5, "b": 5}, kind="JPEG", size=16)
    write(root / "a" / "grey.jpeg", encoded(pixels(1, 16, 16, 1), "JPEG"))
    place, manifest = build(tmp_path, folder(root, shards=3, **values))
    expected = read_back(place)
    split = open_dataset(place).split("train")
    images, labels = split.read_many(range(len(split)))
    assert [manifest.classes[label] for label in labels] == [label for _, label in expected]
    assert all(np.array_equal(image, other) for image, (other, _) in zip(images, expected, strict=True))
    flat = images.reshape(-1, manifest.channels).astype(int)
    assert manifest.mean == tuple(column.sum() / len(flat) for column in flat.T)


@pytest.mark.parametrize(
    "values", [{"size": [8, 6]}, {"size": [8, 6], "layout": "caffe"}, {"size": [8, 6], "encoding": "jpeg", "channels": "grey"}]
)
def test_the_mean_image_is_that_of_train(tmp_path: Path, values: dict[str, Any]) -> None:
    root = class_folders(tmp_path / "p", {"a": 9, "b": 8}, size=16)
    spec = folder(root, shards=5, splits={"test": 0.3}, mean_image=True, **values)
    place, manifest = build(tmp_path, spec)
    assert to_bytes(manifest) == (place / "manifest.json").read_bytes()
    dataset = open_dataset(place)
    images, _ = dataset.split("train").read_many(range(len(dataset.split("train"))))
    assert dataset.mean_image.shape == (8, 6, manifest.channels)
    assert np.array_equal(dataset.mean_image, (images.sum(axis=0, dtype=np.int64) / len(images)).astype(np.float32))
    assert dataset.mean_image.mean(axis=(0, 1), dtype=np.float64) == pytest.approx(manifest.mean, rel=1e-6)
    plain, other = build(tmp_path / "plain", {**spec, "mean_image": False, "statistics": "all"})
    assert (open_dataset(plain).mean_image, other) == (None, replace(manifest, mean_image=None))


def test_a_mean_image_needs_one_size(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"a": 3})
    with pytest.raises(ConfigError, match="mean_image: true needs images of one size"):
        build(tmp_path, folder(root, mean_image=True))


def test_what_is_right_but_older_than_what_it_comes_from_is_touched(tmp_path: Path) -> None:
    """Else Snakemake asks for it with every start."""
    build(tmp_path, MADE)
    build_dir = tmp_path / "datasets" / ".build" / "set-0"
    for name in ("shard-00000.json", "dataset.json"):
        os.utime(build_dir / name, (1, 1))
    build_in(build_dir)
    plan, receipt, dataset = ((build_dir / name).stat().st_mtime_ns for name in ("plan.json", "shard-00000.json", "dataset.json"))
    assert plan <= receipt <= dataset
