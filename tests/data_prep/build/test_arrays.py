"""Sources that hold arrays: IDX, CIFAR, Caffe's LMDB, synthetic images, scikit-learn's digits."""

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from base.errors import DatasetError
from data_prep.sources import estimated_bytes, known_samples
from data_prep.spec import parse_spec
from tests.data_prep.build.corpus import (
    Pixels,
    build,
    build_in,
    encoded,
    idx_bytes,
    pixels,
    prepared,
    read_back,
    reasons,
    stored,
    tar_of,
    write,
)
from tests.data_prep.reader.small import encode

RNG = np.random.default_rng(2)
TRAIN, TEST = RNG.integers(0, 256, (12, 5, 4), dtype=np.uint8), RNG.integers(0, 256, (4, 5, 4), dtype=np.uint8)
TRAIN_LABELS, TEST_LABELS = np.arange(12, dtype=np.uint8) % 3, np.array([2, 1, 0, 0], np.uint8)


def mnist(root: Path, suffix: str = "") -> Path:
    pack = gzip.compress if suffix else bytes
    for prefix, images, labels in (("train", TRAIN, TRAIN_LABELS), ("t10k", TEST, TEST_LABELS)):
        write(root / f"{prefix}-images-idx3-ubyte{suffix}", pack(idx_bytes(images)))
        write(root / f"{prefix}-labels-idx1-ubyte{suffix}", pack(idx_bytes(labels)))
    return root


def pairs(images: Any, labels: Any) -> list[tuple[bytes, str]]:
    return sorted((np.ascontiguousarray(image).tobytes(), str(label)) for image, label in zip(images, labels, strict=True))


def found(root: Path, split: str | None = None) -> list[tuple[bytes, str]]:
    return sorted((np.ascontiguousarray(image).tobytes(), label) for image, label in read_back(root, split))


def test_idx_has_its_own_splits_and_is_grey(tmp_path: Path) -> None:
    root, manifest = build(tmp_path, {"source": "idx", "path": str(mnist(tmp_path / "m")), "shards": 3})
    assert (manifest.channels, manifest.size, manifest.classes) == (1, (5, 4), ("0", "1", "2"))
    assert found(root, "train") == pairs(TRAIN, TRAIN_LABELS)
    assert found(root, "test") == pairs(TEST, TEST_LABELS)
    assert manifest.mean[0] == TRAIN.astype(int).sum() / TRAIN.size
    assert manifest.std[0] == pytest.approx(TRAIN.std(), rel=1e-12)
    packed, _ = build(tmp_path / "gz", {"source": "idx", "path": str(mnist(tmp_path / "z", ".gz")), "shards": 3})
    assert packed.name == root.name


def test_one_idx_file_is_shared_out_by_fractions(tmp_path: Path) -> None:
    path = mnist(tmp_path / "m") / "train-images-idx3-ubyte"
    root, manifest = build(tmp_path, {"source": "idx", "path": str(path), "splits": {"test": 0.25}, "shards": 2})
    assert found(root) == pairs(TRAIN, TRAIN_LABELS)
    assert set(manifest.splits) == {"train", "test"}


def test_fractions_of_a_source_with_a_test_split_come_from_train(tmp_path: Path) -> None:
    spec = {"source": "idx", "path": str(mnist(tmp_path / "m")), "splits": {"validation": 0.4, "test": 0.1}, "shards": 3}
    root, manifest = build(tmp_path, spec)
    assert found(root, "test") == pairs(TEST, TEST_LABELS)
    assert found(root, "train") + found(root, "validation") != found(root, "train")
    assert manifest.splits["train"].samples + manifest.splits["validation"].samples == 12


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train-images-idx3-ubyte", idx_bytes(TRAIN)[:-1], "promises"),
        ("train-images-idx3-ubyte", idx_bytes(TRAIN) + b"x", "promises"),
        ("train-images-idx3-ubyte", b"\0\0\x0d\x03" + bytes(100), "no IDX file"),
        ("train-images-idx3-ubyte", b"", "no IDX file"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "claims the shape"),
        ("train-labels-idx1-ubyte", idx_bytes(TRAIN_LABELS[:-1]), "do not belong together"),
        ("train-labels-idx1-ubyte", None, "come in pairs"),
    ],
)
def test_damaged_idx_is_refused(tmp_path: Path, file: str, content: bytes | None, words: str) -> None:
    root = mnist(tmp_path / "m")
    (root / file).unlink()
    if content is not None:
        write(root / file, content)
    with pytest.raises(DatasetError, match=words):
        prepared(tmp_path, {"source": "idx", "path": str(root)})


NAMES = ["airplane", "cat", "dog"]


def cifar(count: int, seed: int) -> tuple[Pixels, list[int]]:
    images = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return images, [index % 3 for index in range(count)]


BATCHES = {"data_batch_1": cifar(4, 1), "data_batch_2": cifar(3, 2), "test_batch": cifar(3, 3)}


def planes(images: Pixels) -> Pixels:
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072)


def binary_files() -> dict[str, bytes]:
    files = {
        f"cifar-10-batches-bin/{name}.bin": b"".join(
            bytes([label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True)
        )
        for name, (images, labels) in BATCHES.items()
    }
    return {
        **files,
        "cifar-10-batches-bin/batches.meta.txt": ("\n".join(NAMES) + "\n\n").encode(),
        "cifar-10-batches-bin/readme.html": b"x",
    }


def python_files() -> dict[str, bytes]:
    files = {
        f"cifar-10-batches-py/{name}": pickle.dumps({b"data": planes(images), b"labels": labels}, 2)
        for name, (images, labels) in BATCHES.items()
    }
    meta = pickle.dumps({b"label_names": [name.encode() for name in NAMES], b"num_vis": 3072}, 2)
    return {**files, "cifar-10-batches-py/batches.meta": meta}


@pytest.mark.processes
def test_cifar_10_is_the_same_from_every_form(tmp_path: Path) -> None:
    names = set()
    for number, files in enumerate([binary_files(), python_files()]):
        for form in ("inner", "outer", "tar.gz"):
            place = tmp_path / f"{number}-{form}"
            for name, content in files.items():
                write(place / name, content)
            path = next(place.iterdir()) if form == "inner" else place
            if form == "tar.gz":
                path = write(tmp_path / f"{number}.tar.gz", gzip.compress(tar_of(files)))
            root, manifest = build(tmp_path / f"out-{number}-{form}", {"source": "cifar", "path": str(path), "shards": 2})
            names.add(root.name)
    assert len(names) == 1
    assert manifest.classes == tuple(NAMES)
    images = np.concatenate([BATCHES["data_batch_1"][0], BATCHES["data_batch_2"][0]])
    labels = [NAMES[label] for label in BATCHES["data_batch_1"][1] + BATCHES["data_batch_2"][1]]
    assert found(root, "train") == pairs(images, labels)
    assert found(root, "test") == pairs(BATCHES["test_batch"][0], [NAMES[label] for label in BATCHES["test_batch"][1]])
    assert manifest.mean == tuple(images[..., c].astype(int).sum() / images[..., c].size for c in range(3))


@pytest.mark.processes
def test_cifar_100_and_single_files(tmp_path: Path) -> None:
    images, labels = cifar(6, 4)
    for name in ("train", "test"):
        records = b"".join(bytes([9, label]) + row.tobytes() for label, row in zip(labels, planes(images), strict=True))
        write(tmp_path / "bin" / f"{name}.bin", records)
        write(tmp_path / "py" / name, pickle.dumps({b"data": planes(images), b"fine_labels": labels, b"coarse_labels": [9] * 6}, 2))
    write(tmp_path / "bin" / "fine_label_names.txt", b"apple\nbear\nbee\n")
    write(tmp_path / "py" / "meta", pickle.dumps({"fine_label_names": ["apple", "bear", "bee"]}, 2))
    one, manifest = build(tmp_path / "1", {"source": "cifar", "path": str(tmp_path / "bin"), "shards": 2})
    other, _ = build(tmp_path / "2", {"source": "cifar", "path": str(tmp_path / "py"), "shards": 2})
    assert one.name == other.name
    assert manifest.classes == ("apple", "bear", "bee")
    single, manifest = build(tmp_path / "3", {"source": "cifar", "path": str(tmp_path / "py" / "train"), "splits": {}, "shards": 1})
    assert found(single) == pairs(images, [("apple", "bear", "bee")[label] for label in labels])
    batch = write(tmp_path / "alone" / "data_batch_1.bin", binary_files()["cifar-10-batches-bin/data_batch_1.bin"])
    _, manifest = build(tmp_path / "4", {"source": "cifar", "path": str(batch), "splits": {}, "shards": 1})
    assert manifest.classes == ("0", "1", "2")


def test_a_label_beyond_the_names_is_listed(tmp_path: Path) -> None:
    files = binary_files()
    files["cifar-10-batches-bin/batches.meta.txt"] = b"airplane\ncat\n"
    for name, content in files.items():
        write(tmp_path / name, content)
    _, manifest = build(tmp_path, {"source": "cifar", "path": str(tmp_path), "shards": 2})
    assert manifest.rejected_count == 3
    assert reasons(manifest)["data_batch_1/00002"] == "label 2 of 2 classes"


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.processes
def test_a_malicious_batch_does_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "called"
    batch = {b"data": planes(cifar(2, 1)[0]), b"labels": [0, 1], b"extra": _Evil(mark)}
    write(tmp_path / "py" / "data_batch_1", pickle.dumps(batch, 2))
    with pytest.raises(DatasetError, match="no safe pickle"):
        prepared(tmp_path, {"source": "cifar", "path": str(tmp_path / "py")})
    assert not mark.exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"data_batch_1.bin": b"x" * 3000}, "whole number of records"),
        ({"data_batch_1.bin": b""}, "whole number of records"),
        pytest.param({"data_batch_1": pickle.dumps([1])}, "a list and not a dict", marks=pytest.mark.processes),
        pytest.param({"data_batch_1": pickle.dumps({"data": [1], "labels": [1]})}, "no batch of CIFAR", marks=pytest.mark.processes),
        pytest.param(
            {"data_batch_1": pickle.dumps({"data": planes(cifar(2, 1)[0]), "labels": [1]})}, "they do not fit", marks=pytest.mark.processes
        ),
        pytest.param({"data_batch_1": b"garbage"}, "no safe pickle", marks=pytest.mark.processes),
        ({"other.bin": b"x"}, "holds no CIFAR files"),
    ],
)
def test_damaged_cifar_is_refused(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    for name, content in files.items():
        write(tmp_path / "c" / name, content)
    with pytest.raises(DatasetError, match=words):
        prepared(tmp_path, {"source": "cifar", "path": str(tmp_path / "c")})


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("data_batch_1.bin", 3073 * 2_000_000, "this is not a file of CIFAR"),
        ("data_batch_1", 6 << 30, "this is not a file of CIFAR"),
        ("batches.meta.txt", 6 << 30, "this is not a file of CIFAR"),
    ],
)
def test_a_sparse_file_of_gigabytes_is_not_read(tmp_path: Path, name: str, size: int, words: str) -> None:
    write(tmp_path / "c" / "data_batch_2.bin", bytes(3073))
    with (tmp_path / "c" / name).open("wb") as file:
        file.truncate(size)
    with pytest.raises(DatasetError, match=words):
        prepared(tmp_path, {"source": "cifar", "path": str(tmp_path / "c")})


def caffe_lmdb(path: Path, values: list[bytes]) -> Path:
    path.mkdir(parents=True)
    with lmdb.open(str(path), map_size=1 << 24, lib_version=0) as env, env.begin(write=True) as txn:
        for index, value in enumerate(values):
            txn.put(b"%08d_name" % index, value)
    (path / "lock.mdb").unlink()
    return path


@pytest.mark.processes
def test_raw_datums_are_taken_as_they_are(tmp_path: Path) -> None:
    images = [pixels(seed, 4, 6) for seed in range(6)]
    data = [image[:, :, ::-1].transpose(2, 0, 1).tobytes() for image in images]
    values = [encode(3, 4, 6, value, index % 2 + 3) for index, value in enumerate(data)]
    broken = [b"\x22\xff", encode(2, 1, 1, b"ab", 3), encode(0, 0, 0, b"no image", 3, encoded=True)]
    path = caffe_lmdb(tmp_path / "db", values + broken)
    root, manifest = build(tmp_path, {"source": "caffe-lmdb", "path": str(path), "splits": {}, "shards": 1})
    assert (manifest.layout, manifest.encoding, manifest.channels, manifest.size) == ("caffe", "raw", 3, (4, 6))
    assert manifest.classes == ("3", "4")
    assert sorted(stored(root)) == sorted(data)
    assert found(root) == pairs(images, ["3", "4"] * 3)
    assert manifest.rejected_count == 3
    assert "00000006_name" in reasons(manifest)


@pytest.mark.slow
def test_datums_can_be_converted(tmp_path: Path) -> None:
    path = caffe_lmdb(tmp_path / "db", [encode(3, 4, 4, pixels(seed, 4, 4).tobytes(), 0) for seed in range(3)])
    _, manifest = build(tmp_path, {"source": "caffe-lmdb", "path": str(path), "encoding": "raw", "size": 8, "splits": {}, "shards": 1})
    assert (manifest.layout, manifest.size) == ("hwc", (8, 8))


@pytest.mark.slow
def test_encoded_datums_keep_their_jpeg(tmp_path: Path) -> None:
    files = [encoded(pixels(seed, 16, 16), "JPEG") for seed in range(3)]
    path = caffe_lmdb(tmp_path / "db", [encode(3, 0, 0, file, 0, encoded=True) for file in files])
    root, manifest = build(tmp_path, {"source": "caffe-lmdb", "path": str(path), "splits": {}, "shards": 1})
    assert (manifest.encoding, manifest.layout) == ("jpeg", "hwc")
    assert sorted(stored(root)) == sorted(files)


@pytest.mark.slow
def test_an_lmdb_that_kills_its_reader_is_an_error(tmp_path: Path) -> None:
    path = caffe_lmdb(tmp_path / "db", [encode(3, 32, 32, pixels(s, 32, 32).tobytes(), 0) for s in range(50)])
    data = path / "data.mdb"
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match="SIGBUS|damaged"):
        prepared(tmp_path / "1", {"source": "caffe-lmdb", "path": str(path)})
    data.write_bytes(b"no lmdb at all" * 1000)
    with pytest.raises(DatasetError, match="no LMDB"):
        prepared(tmp_path / "2", {"source": "caffe-lmdb", "path": str(path)})


def test_synthetic_images_are_learnable_and_the_same_everywhere(tmp_path: Path) -> None:
    spec = {"source": "synthetic", "samples": 60, "classes": 3, "size": [12, 20], "seed": 5, "splits": {"test": 0.2}, "shards": 3}
    root, manifest = build(tmp_path, spec)
    again, _ = build(tmp_path / "again", spec)
    other, _ = build(tmp_path / "other", {**spec, "seed": 6})
    assert root.name == again.name != other.name
    train, test = read_back(root, "train"), read_back(root, "test")
    assert len(train) + len(test) == 60
    assert test
    means = {label: np.mean([image for image, name in train if name == label], axis=0) for label in manifest.classes}
    nearest = [min(means, key=lambda name: np.abs(means[name] - image).mean()) for image, _ in test]
    assert nearest == [label for _, label in test]


@pytest.mark.slow
def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    root = tmp_path / "datasets" / build_in(prepared(tmp_path, {"source": "sklearn-digits", "splits": {}, "shards": 2})).path
    expected = load_digits()
    images = np.floor(expected.images * 255 / 16 + 0.5).astype(np.uint8)
    assert found(root) == pairs(images, expected.target)


def test_digits_without_importing_the_package(tmp_path: Path) -> None:
    root, manifest = build(tmp_path, {"source": "sklearn-digits", "size": 8, "splits": {}, "shards": 1})
    assert manifest.splits["train"].class_counts == (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
    assert manifest.mean[0] == pytest.approx(4.884164579855314 * 255 / 16, rel=2e-3)  # before rounding to whole values
    assert len(read_back(root)) == 1797


def test_bytes_are_estimated_of_raw_images_of_a_known_size(tmp_path: Path) -> None:
    def of(samples: int | None = None, **values: Any) -> int | None:
        spec = parse_spec(values, tmp_path)
        return estimated_bytes(spec, samples or known_samples(spec))

    assert of(source="synthetic", size=256) == 1024 * 49 * 4096
    assert of(source="sklearn-digits") == 1797 * 96
    assert of(source="folder", path="/x", size=256) is None
    assert of(1_281_167, source="folder", path="/x", size=256) == 1_281_167 * 49 * 4096
