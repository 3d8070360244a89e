import base64
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.reader import DatasetChanged, DatumError, DecodeError, ReaderError, open_dataset, shards
from data_prep.reader.datum import CANDIDATES, decode
from tests.data_prep.reader.small import image_dataset, write_shard

RANDOM = np.random.default_rng(0)


def pictures(count: int, shape: tuple[int, int, int] = (4, 5, 3)) -> list[tuple[Any, int]]:
    return [(RANDOM.integers(0, 256, shape, np.uint8), label * 100) for label in range(count)]


def jpeg(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "JPEG", quality=90)
    return file.getvalue()


@pytest.mark.parametrize("layout", ["hwc", "caffe"])
@pytest.mark.parametrize("channels", [1, 3])
def test_raw_images_come_back_as_they_were(tmp_path: Path, layout: str, channels: int) -> None:
    images = pictures(7, (4, 5, channels))
    split = open_dataset(str(image_dataset(tmp_path, images, shards=3, layout=layout))).split("train")
    assert len(split) == 7
    for index, (image, label) in enumerate(images):
        found, found_label = split[index]
        assert found.tolist() == image.tolist()
        assert found_label == label
    batch, labels = split.read_many([6, 0, 3])
    assert batch.shape == (3, 4, 5, channels)
    assert batch.tolist() == [images[index][0].tolist() for index in (6, 0, 3)]
    assert labels.tolist() == [600, 0, 300]


def test_a_batch_goes_into_the_array_that_is_there(tmp_path: Path) -> None:
    images = pictures(4)
    split = open_dataset(str(image_dataset(tmp_path, images))).split("train")
    out = np.zeros((5, 4, 5, 3), np.uint8)
    batch, _ = split.read_many([2, 1], out=out)
    assert batch.base is out
    assert out[:2].tolist() == [images[2][0].tolist(), images[1][0].tolist()]
    assert not out[2:].any()
    for wrong in (out[:1], out[:, :3], out[:, :, :, :1], out.astype(np.float32), np.frombuffer(bytes(240), np.uint8).reshape(4, 4, 5, 3)):
        with pytest.raises(ValueError, match=r"out is (uint8|float32) .*, the images are uint8 \(2, 4, 5, 3\), to be written"):
            split.read_many([2, 1], out=wrong)


def test_the_dataset_knows_its_splits_and_shape(tmp_path: Path) -> None:
    dataset = open_dataset(str(image_dataset(tmp_path, pictures(6), shards=3, test_shards=1)))
    assert (dataset.name, dataset.classes, dataset.num_classes, dataset.channels, dataset.size) == ("images", ["only"], 1, 3, (4, 5))
    assert (len(dataset.split("train")), len(dataset.split("test"))) == (4, 2)
    assert dataset.split("test").read(1)[1] == 500
    assert dataset.mean.shape == dataset.std.shape == (3,)
    with pytest.raises(ReaderError, match=r"no split 'tests'; it has: test, train"):
        dataset.split("tests")
    with pytest.raises(IndexError, match="sample 2 of split 'test', which has 2"):
        dataset.split("test").read(2)
    with pytest.raises(IndexError):
        dataset.split("test").read(-1)


def smooth(shape: tuple[int, int, int]) -> Any:
    rows, columns, channels = np.indices(shape)
    return (40 + 3 * rows + 2 * columns + 20 * channels).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpegs_are_decoded_in_rgb_by_every_decoder(tmp_path: Path, channels: int) -> None:
    image = smooth((24, 32, channels))
    split = open_dataset(str(image_dataset(tmp_path, [(image, 0), (image, 1)], encoder=jpeg))).split("train")
    batch, _ = split.read_many([1])
    assert batch.shape == (1, 24, 32, channels)
    assert split.read(0)[0].tolist() == batch[0].tolist() == decode(jpeg(image), channels, CANDIDATES[:1]).tolist()
    assert [name for name, _ in CANDIDATES] == ["simplejpeg", "PIL.Image"]
    for candidate in CANDIDATES:
        found = decode(jpeg(image), channels, (candidate,))
        assert found.shape == (24, 32, channels)
        assert np.abs(found.astype(int) - image).max() <= 4


def test_what_the_fast_decoder_refuses_goes_to_the_next(tmp_path: Path) -> None:
    def png(image: Any) -> bytes:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        return file.getvalue()

    image = smooth((24, 32, 3))
    split = open_dataset(str(image_dataset(tmp_path, [(image, 0), (image, 1)], encoder=png))).split("train")
    assert split.read(0)[0].tolist() == image.tolist()


def test_exif_orientation_is_left_alone() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    file = io.BytesIO()
    Image.fromarray(smooth((24, 32, 3))).save(file, "JPEG", exif=exif)
    for candidate in CANDIDATES:
        assert decode(file.getvalue(), 3, (candidate,)).shape == (24, 32, 3)


def test_no_decoder_says_what_to_install() -> None:
    with pytest.raises(DecodeError, match="install simplejpeg"):
        decode(b"", 3, (("no_such_module", CANDIDATES[-1][1]),))


def test_images_of_different_sizes_are_read_one_by_one(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, [(smooth((24, 32, 3)), 0), (smooth((16, 16, 3)), 1)], encoder=jpeg, sized=False)
    split = open_dataset(str(root)).split("train")
    assert [split.read(index)[0].shape for index in (0, 1)] == [(24, 32, 3), (16, 16, 3)]
    with pytest.raises(ReaderError, match="differ in size"):
        split.read_many([0])


def broken(root: Path, values: list[bytes]) -> Any:
    """The dataset with its first shard replaced by `values`, its manifest made to fit in size."""
    (root / "shard-00000.lmdb" / "data.mdb").unlink()
    (root / "shard-00000.lmdb").rmdir()
    write_shard(root / "shard-00000.lmdb", values)
    split = open_dataset(str(root)).split("train")
    split.bytes[0] = (root / "shard-00000.lmdb" / "data.mdb").stat().st_size
    return split


def test_a_damaged_sample_is_named(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, pictures(4))
    split = broken(root, [b"\x08", b"\x38\x01\x22\x03abc", b"\x08\x03\x10\x01\x18\x01\x22\x03abc"])
    with pytest.raises(DatumError, match=r"shard-00000.lmdb, sample 00000000: .*middle of a field"):
        split.read(0)
    with pytest.raises(DecodeError, match=r"shard-00000.lmdb, sample 00000001: PIL.Image: "):
        split.read(1)
    shards.close_all()
    with pytest.raises(DatasetChanged, match=r"shard-00000.lmdb, sample 00000001: page 2 names no place .*: stage the dataset"):
        broken(root, [b"\x08"]).read(1)
    shards.close_all()
    with pytest.raises(DecodeError, match=r"sample 00000000: the image is \(1, 1, 3\), the dataset has \(4, 5\) with 3 channels"):
        broken(root, [b"\x08\x03\x10\x01\x18\x01\x22\x03abc"]).read(0)


def test_a_cut_shard_is_an_error_and_no_sigbus(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, pictures(40))
    path = root / "shard-00000.lmdb" / "data.mdb"
    whole = path.stat().st_size
    os.truncate(path, whole - 4096)
    split = open_dataset(str(root)).split("train")
    with pytest.raises(DatasetChanged, match=rf"has {whole - 4096} bytes, its manifest says {whole}: stage the dataset again"):
        split.read(0)
    path.unlink()
    with pytest.raises(DatasetChanged, match="cannot be opened"):
        split.read(0)
    assert split.read(39)[1] == 3900  # the other shard


def test_what_is_no_lmdb_is_an_error(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, pictures(4))
    path = root / "shard-00000.lmdb" / "data.mdb"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DatasetChanged, match="cannot be opened .*its header is not that of a file of LMDB 0.9"):
        open_dataset(str(root)).split("train").read(0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"{", "JSONDecodeError"),
        (b"[]", "TypeError"),
        (b"{}", "schema"),
        (b'{"schema": "slipway.dataset/9"}', "/9"),
    ],
)
def test_a_wrong_manifest_is_an_error(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DatasetChanged, match=reason):
        open_dataset(str(tmp_path))


def test_a_mean_image_is_read_and_cropped(tmp_path: Path) -> None:
    root = image_dataset(tmp_path, pictures(1))
    path = root / "manifest.json"
    manifest = {**json.loads(path.read_text()), "size": [4, 5]}
    path.write_text(json.dumps({**manifest, "mean_image": base64.b64encode(bytes(240)).decode()}))
    assert open_dataset(str(root)).mean_image.shape == (4, 5, 3)
    assert open_dataset(str(root), crop=3).mean_image.shape == (3, 3, 3)


@pytest.mark.processes
def test_a_fork_and_a_pickle_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "IN_MEMORY", 1 << 40)
    images = pictures(6, (40, 40, 3))
    split = open_dataset(str(image_dataset(tmp_path, images))).split("train")
    expected = [split.read(index)[0].tobytes() for index in range(6)]
    copy = pickle.loads(pickle.dumps(split))
    assert [copy.read(index)[0].tobytes() for index in range(6)] == expected
    assert shards._open
    assert shards._spare
    child = os.fork()
    if child == 0:
        inherited = len(shards._open) + len(shards._spare)
        os._exit(inherited or [split.read(index)[0].tobytes() for index in range(6)] != expected)
    assert os.waitpid(child, 0)[1] == 0
    assert split.read(0)[0].tobytes() == expected[0]


@pytest.mark.processes
@pytest.mark.parametrize("in_memory", [0, 1 << 40])
def test_threads_of_forked_processes_read_whatever_the_threads_of_their_parent_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(shards, "IN_MEMORY", in_memory)
    images = pictures(24, (40, 40, 3))
    split = open_dataset(str(image_dataset(tmp_path, images, shards=6))).split("train")
    expected = np.stack([image for image, _ in images])

    def read(_: int = 0) -> bool:
        split.prefetch(range(24))
        return bool((split.read_many(range(24))[0] == expected).all())

    ended = threading.Event()

    def read_on() -> None:
        while not ended.is_set():
            shards.close_all()
            assert read()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_on)
        try:
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    with ThreadPoolExecutor(4) as threads:
                        os._exit(not all(threads.map(read, range(4))))
                assert os.waitpid(child, 0)[1] == 0
        finally:
            ended.set()
        reading.result()


@pytest.mark.processes
def test_few_shards_are_open_at_a_time_and_threads_share_them(tmp_path: Path) -> None:
    """In a process that may open few files, of which the reader takes half: two for each shard."""
    images = pictures(60)
    root = image_dataset(tmp_path, images, shards=20)
    few = ["sh", "-c", 'ulimit -n 32 && exec "$@"', "sh"]
    child = subprocess.run([*few, sys.executable, "-m", "tests.data_prep.reader.sharing", str(root)], stdout=subprocess.PIPE, check=True)
    found = json.loads(child.stdout)
    assert found["alone"] == [[label, image.tobytes().hex()] for image, label in images]
    assert found["open"] == 8  # the least
    assert found["wrong"] == []
