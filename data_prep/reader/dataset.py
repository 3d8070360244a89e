"""Read a staged dataset in a training program: splits of samples that are read by number."""

import base64
import json
import os
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import pixels, shards
from .datum import Datum, decode, parse
from .errors import DatasetChanged, DatumError, DecodeError, ReaderError
from .sampling import Augmentation, windows
from .sequences import Sequences

SCHEMA, SEQUENCES = "slipway.dataset/1", "slipway.sequences/1"


class Dataset:
    """A dataset: the values of the manifest, and the splits. `size` is (height, width) of the images that are read: that of the `crop`,
    where there is one, or else `stored`; None where images differ. It holds no open file."""

    def __init__(self, root: str, manifest: Dict[str, Any], crop: Optional[int] = None) -> None:
        self.root = root
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.classes: List[str] = list(manifest["classes"])
        self.num_classes = len(self.classes)
        self.channels: int = manifest["channels"]
        self.stored: Optional[Tuple[int, int]] = tuple(manifest["size"]) if manifest["size"] else None
        self.crop = None if crop is None else (crop, crop)
        if crop is not None and (self.stored is None or not 0 < crop <= min(self.stored)):
            raise ValueError("a window of %d x %d does not fit into the images of %s, whose size is %s" % (crop, crop, root, self.stored))
        self.size = self.crop or self.stored
        self.mean = np.array(manifest["mean"], np.float64)
        self.std = np.array(manifest["std"], np.float64)

    @property
    def mean_image(self) -> Optional[np.ndarray]:
        """Return the mean of each pixel of train, float32 (height, width, channels), of a crop the middle. It is None where the dataset was
        built without it."""
        text = self.manifest.get("mean_image")
        if text is None or self.stored is None or self.size is None:
            return None
        whole = np.frombuffer(base64.b64decode(text), "<f4").reshape(self.stored + (self.channels,))
        row, column, _ = windows(self.stored, self.crop, np.zeros(1))[0]
        return whole[row : row + self.size[0], column : column + self.size[1]]

    @property
    def shapes(self) -> Tuple[List[int], List[int]]:
        """Return the shapes of a network's input for one sample, and of its output."""
        return [self.channels] + list(self.size or ()), [self.num_classes]

    def groups(self, name: str) -> Tuple[int, ...]:
        """Return how many samples of a split may stand in one batch: for images all."""
        return (self.manifest["splits"][name]["samples"],)

    def split(self, name: str) -> "Split":
        """Return a split. Raises ReaderError with the valid names."""
        return Split(self, name)


class Split(shards.Samples):
    """A split: samples 0 .. len-1, in the order of the shards. It is safe to pickle, to fork and to share between threads."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        super().__init__(dataset.root, dataset.manifest, name)
        self.channels, self.size, self.stored, self.crop = dataset.channels, dataset.size, dataset.stored, dataset.crop
        self.shape = None if self.size is None else self.size + (self.channels,)
        self.dtype = np.dtype(np.uint8)
        self.caffe = dataset.manifest["layout"] == "caffe"

    def __getitem__(self, index: int) -> Tuple[np.ndarray, int]:
        return self.read(index)

    def read(self, index: int) -> Tuple[np.ndarray, int]:
        """Read an image, uint8 (height, width, channels), RGB or grey, and its label. Of a crop it is the middle."""
        if self.size is not None:
            images, labels = self.read_many([index])
            return images[0], int(labels[0])
        found = []  # type: List[Tuple[Any, int]]

        def take(_: int, values: Sequence[memoryview]) -> None:
            datum = parse(values[0])
            image = self._checked(decode(datum.data, self.channels)) if datum.encoded else np.array(self._raw(datum), order="C")
            found.append((image, datum.label))

        try:
            shards.use_many(self._places([index]), take)
            return found[0]
        except (DatumError, DecodeError) as error:
            raise self._named(index, error) from error

    def read_many(
        self, indices: Sequence[int], out: Optional[np.ndarray] = None, augment: Optional[Augmentation] = None
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Read images, uint8 (len, height, width, channels), and labels, int64 (len,). The images go to `out` (that shape, or longer),
        whose filled part is returned. `augment`: how they are changed by chance. Raises ReaderError for a dataset without one size,
        ValueError for an `out` that the images do not fit into."""
        if self.shape is None or self.size is None or self.stored is None:
            raise ReaderError("the images of split %r differ in size: use read(), or build the dataset with a size" % self.name)
        samples = [int(index) for index in indices]
        shape = (len(samples),) + self.shape
        images = np.empty(shape, np.uint8) if out is None else out[: len(samples)]
        if images.shape != shape or images.dtype != np.uint8 or not images.flags.writeable:
            raise ValueError("out is %s %s, the images are uint8 %s, to be written" % (images.dtype, images.shape, shape))
        labels = np.empty(len(samples), np.int64)
        parts = windows(self.stored, self.crop, np.array(samples, np.int64), augment)
        form = pixels.Form(self.stored[0], self.stored[1], self.channels, int(self.caffe and self.channels > 1), *self.size)
        whole, stored = self.size == self.stored and not parts.any(), self.stored + (self.channels,)

        def take(first: int, values: pixels.Values) -> None:
            row, own = first, slice(first, first + len(values))
            try:
                for number, start, end in pixels.copy_raw(values, form, parts[own], images[own], labels[own]):
                    row = first + number
                    target, file, image = images[row], values[number][start:end], None
                    if end < 0:
                        datum = parse(values[number])
                        labels[row], file = datum.label, datum.data
                        image = None if datum.encoded else self._raw(datum)
                    if image is None:
                        image = self._checked(decode(file, self.channels, out=target if whole else _scratch(stored)))
                    if image is not target:
                        pixels.copy_window(image, parts[row], target)
            except (DatumError, DecodeError) as error:
                raise self._named(samples[row], error) from error

        shards.use_many(self._places(samples), take)
        return images, labels

    def _named(self, index: int, error: ReaderError) -> ReaderError:
        """Return an error that names the shard, the sample and where in the file it lies, which tells the chunk of the manifest."""
        place = self._places([index])[0]
        return type(error)(
            "%s, sample %s: %s (from byte %d of the file on)" % (place[0], place[2].decode(), error, shards.position(place)[0])
        )

    def _raw(self, datum: Datum) -> np.ndarray:
        """Return the pixels as HWC RGB without a copy. Caffe keeps planes in the order blue, green, red."""
        pixels = np.frombuffer(datum.data, np.uint8)
        if self.caffe:
            return self._checked(pixels.reshape(datum.channels, datum.height, datum.width)[::-1].transpose(1, 2, 0))
        return self._checked(pixels.reshape(datum.height, datum.width, datum.channels))

    def _checked(self, image: np.ndarray) -> np.ndarray:
        if image.shape[2] != self.channels or (self.stored is not None and image.shape[:2] != self.stored):
            raise DecodeError("the image is %r, the dataset has %r with %d channels" % (image.shape, self.stored, self.channels))
        return image


_local = threading.local()


def _scratch(shape: Tuple[int, ...]) -> np.ndarray:
    """Return memory of this thread for one image, which is used again: fresh memory costs a fault for each of its pages."""
    if getattr(_local, "scratch", None) is None or _local.scratch.shape != shape:
        size = int(np.prod(shape))
        memory = np.empty(size + 16, np.uint8)
        # To addresses that are multiples of 16 libjpeg-turbo writes past the cache, out of which the window is read at once.
        start = (8 - pixels.address_of(memory)) % 16
        _local.scratch = memory[start : start + size].reshape(shape)
    return _local.scratch


def open_dataset(root: str, crop: Optional[int] = None) -> Any:
    """Read `root`/manifest.json: a Dataset (of images), or Sequences (of tokens). Opens no shard. `crop`: the side of the square window
    that is read of each image. Raises DatasetChanged where the manifest is missing or not of this version, ValueError where there is no
    such window. What the manifest says is taken as it is: staging has compared its hash with the directory's name."""
    path = os.path.join(str(root), "manifest.json")
    try:
        with open(path, "rb") as file:
            manifest = json.loads(file.read().decode("utf-8"))
        if manifest["schema"] not in (SCHEMA, SEQUENCES):
            raise ValueError("schema %r, this reader knows %s and %s" % (manifest["schema"], SCHEMA, SEQUENCES))
        for shard in manifest["shards"]:
            shard.pop("chunks", None)  # the larger part of a large manifest, and of no use here: staging has checked them
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise DatasetChanged(
            "%s is not the manifest of a dataset (%s: %s); stage it again" % (path, type(error).__name__, error)
        ) from error
    return Sequences(str(root), manifest) if manifest["schema"] == SEQUENCES else Dataset(str(root), manifest, crop)
