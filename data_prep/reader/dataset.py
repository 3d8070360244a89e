"""Read a staged dataset in a training program: splits of samples that are read by number."""

import base64
import json
import os
from bisect import bisect_right
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import shards
from .checking import SEQUENCES, check_manifest
from .datum import Datum, decode, parse
from .errors import DatasetChanged, DatumError, DecodeError, ReaderError
from .sequences import Sequences


class Dataset:
    """A dataset: the values of the manifest, and the splits. `size` is (height, width), or None where images differ. It holds no open
    file."""

    def __init__(self, root: str, manifest: Dict[str, Any]) -> None:
        self.root = root
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.classes: List[str] = list(manifest["classes"])
        self.num_classes = len(self.classes)
        self.channels: int = manifest["channels"]
        self.size: Optional[Tuple[int, int]] = tuple(manifest["size"]) if manifest["size"] else None
        self.mean = np.array(manifest["mean"], np.float64)
        self.std = np.array(manifest["std"], np.float64)

    @property
    def mean_image(self) -> Optional[np.ndarray]:
        """Return the mean of each pixel of train, float32 (height, width, channels). It is None where the dataset was built without it."""
        text = self.manifest.get("mean_image")
        if text is None or self.size is None:
            return None
        return np.frombuffer(base64.b64decode(text), "<f4").reshape(self.size + (self.channels,))

    @property
    def shapes(self) -> Tuple[List[int], List[int]]:
        """Return the shapes of a network's input for one sample, and of its output."""
        return [self.channels] + list(self.size or ()), [self.num_classes]

    def groups(self, name: str) -> Tuple[int, ...]:
        """Return how many samples of a split may stand in one batch: for images all."""
        return (self.manifest["splits"][name]["samples"],)

    def split(self, name: str) -> "Split":
        """Return a split. Raises ReaderError with the valid names."""
        if name not in self.manifest["splits"]:
            raise ReaderError("%s has no split %r; it has: %s" % (self.root, name, ", ".join(sorted(self.manifest["splits"]))))
        return Split(self, name)


class Split:
    """A split: samples 0 .. len-1, in the order of the shards. It is safe to pickle, to fork and to share between threads."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        chosen = [dataset.manifest["shards"][index] for index in dataset.manifest["splits"][name]["shards"]]
        self.name = name
        self.channels, self.size = dataset.channels, dataset.size
        self.caffe = dataset.manifest["layout"] == "caffe"
        self.paths = [os.path.join(dataset.root, shard["name"]) for shard in chosen]
        self.bytes = [shard["bytes"] for shard in chosen]
        self.starts = [0]
        for shard in chosen:
            self.starts.append(self.starts[-1] + shard["samples"])

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: int) -> Tuple[np.ndarray, int]:
        return self.read(index)

    def read(self, index: int) -> Tuple[np.ndarray, int]:
        """Read an image, uint8 (height, width, channels), RGB or grey, and its label."""
        image, label = self._sample(index, None)
        return image, label

    def read_many(self, indices: Sequence[int], out: Optional[np.ndarray] = None) -> Tuple[np.ndarray, np.ndarray]:
        """Read images, uint8 (len, height, width, channels), and labels, int64 (len,). The images go to `out` (that shape, or longer),
        whose filled part is returned. Raises ReaderError for a dataset without one size."""
        if self.size is None:
            raise ReaderError("the images of split %r differ in size: use read(), or build the dataset with a size" % self.name)
        images = np.empty((len(indices),) + self.size + (self.channels,), np.uint8) if out is None else out[: len(indices)]
        labels = np.empty(len(indices), np.int64)
        for row, index in enumerate(indices):
            labels[row] = self._sample(int(index), images[row])[1]
        return images, labels

    def prefetch(self, indices: Sequence[int]) -> None:
        """Let the kernel read these samples while others are decoded. It never changes a result."""
        by_shard: Dict[int, List[bytes]] = {}
        for index in sorted(indices):
            shard, key = self._place(int(index))
            by_shard.setdefault(shard, []).append(key)
        for shard, keys in by_shard.items():
            shards.will_need(self.paths[shard], self.bytes[shard], keys)

    def _place(self, index: int) -> Tuple[int, bytes]:
        if not 0 <= index < self.starts[-1]:
            raise IndexError("sample %d of split %r, which has %d" % (index, self.name, len(self)))
        shard = bisect_right(self.starts, index) - 1
        return shard, b"%08d" % (index - self.starts[shard])

    def _sample(self, index: int, out: Optional[np.ndarray]) -> Tuple[np.ndarray, int]:
        shard, key = self._place(index)

        def take(value: memoryview) -> Tuple[Any, int]:
            datum = parse(value)
            if datum.encoded:
                return bytes(datum.data), datum.label  # decoded after the lock is released
            return _fill(self._raw(datum), out), datum.label

        try:
            image, label = shards.use(self.paths[shard], self.bytes[shard], key, take)
            if isinstance(image, bytes):
                image = self._checked(decode(image, self.channels))
                image = image if out is None else _fill(image, out)
        except (DatumError, DecodeError) as error:
            raise type(error)("%s, sample %s: %s" % (self.paths[shard], key.decode(), error)) from error
        return image, label

    def _raw(self, datum: Datum) -> np.ndarray:
        """Return the pixels as HWC RGB without a copy. Caffe keeps planes in the order blue, green, red."""
        pixels = np.frombuffer(datum.data, np.uint8)
        if self.caffe:
            return self._checked(pixels.reshape(datum.channels, datum.height, datum.width)[::-1].transpose(1, 2, 0))
        return self._checked(pixels.reshape(datum.height, datum.width, datum.channels))

    def _checked(self, image: np.ndarray) -> np.ndarray:
        if image.shape[2] != self.channels or (self.size is not None and image.shape[:2] != self.size):
            raise DecodeError("the image is %r, the dataset has %r with %d channels" % (image.shape, self.size, self.channels))
        return image


def _with_keys_once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    value = {}  # type: Dict[str, Any]
    for key, one in pairs:
        if key in value:
            raise ValueError("the key %r is there twice" % key)
        value[key] = one
    return value


def open_dataset(root: str) -> Any:
    """Read `root`/manifest.json: a Dataset (of images), or Sequences (of tokens). Opens no shard. Raises DatasetChanged where the manifest
    is missing or not of this version."""
    path = os.path.join(str(root), "manifest.json")
    try:
        with open(path, "rb") as file:
            manifest = check_manifest(json.loads(file.read().decode("utf-8"), object_pairs_hook=_with_keys_once))
        for shard in manifest["shards"]:
            shard.pop("chunks", None)  # the larger part of a large manifest, and of no use here: staging has checked them
        return Sequences(str(root), manifest) if manifest["schema"] == SEQUENCES else Dataset(str(root), manifest)
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetChanged(
            "%s is not the manifest of a dataset (%s: %s); stage it again" % (path, type(error).__name__, error)
        ) from error


def _fill(image: np.ndarray, out: Optional[np.ndarray]) -> np.ndarray:
    if out is None:
        return np.array(image, order="C")
    np.copyto(out, image)
    return out
