"""How each foreign peer builds and reads: as its documentation shows, with two workers, and with the fastest decoder where it has none."""

import functools
import importlib.abc
import importlib.machinery
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.program import SIDE, Task, Turns, builder, files_of, flip_crop, once, pixels_of, read_file, reader


class Files:
    """The source as a map-style dataset of (content, label): bytes of a JPEG, or raw pixels."""

    def __init__(self, source: str, encoding: str, *, as_array: bool = False) -> None:
        self.files = files_of(source)
        self.raw = encoding == "raw"
        self.as_array = as_array

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.files[index]
        content = read_file(path)
        if self.raw:
            pixels = pixels_of(content)
            return (pixels if self.as_array else pixels.tobytes()), label
        return (np.frombuffer(content, np.uint8) if self.as_array else content), label


def delivered(task: Task, content: bytes) -> Any:
    """Return the image that a network gets from what was stored."""
    image = np.frombuffer(content, np.uint8).reshape(SIDE, SIDE, 3) if task.encoding == "raw" else pixels_of(content)
    if not task.side:
        return image
    out = np.empty((task.side, task.side, 3), np.uint8)
    flip_crop(image, out, task.side)
    return out


# ffcv


def _ffcv_write(task: Task, path: str, field: Any, source: Any) -> None:
    from ffcv.fields import IntField
    from ffcv.writer import DatasetWriter

    DatasetWriter(path, {"image": field, "label": IntField()}, num_workers=task.jobs).from_indexed_dataset(source)


def ffcv_build(task: Task) -> Turns:
    """Pass JPEGs through as bytes, or store raw pixels. Its own field of images would decode a JPEG and encode it again."""
    from ffcv.fields import BytesField, RGBImageField

    field = RGBImageField(write_mode="raw") if task.encoding == "raw" else BytesField()
    return builder(task, lambda path: _ffcv_write(task, path, field, Files(task.source, task.encoding, as_array=True)))


def ffcv_read(task: Task) -> Turns:
    """Read in random order. A window of fixed area is its resizing decoder without anything to resize: it has no other random crop."""
    from ffcv.fields import RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor

    mode = "raw" if task.encoding == "raw" else "jpg"
    pixels = Files(task.source, "raw", as_array=True)
    data = once(
        f"{task.place}/{task.encoding}.beton",
        lambda path: _ffcv_write(task, path, RGBImageField(write_mode=mode, jpeg_quality=85), pixels),
    )
    area = (task.side / SIDE) ** 2
    whole = [SimpleRGBImageDecoder(), ToTensor()]
    window = [RandomResizedCropRGBImageDecoder((task.side, task.side), (area, area), (1.0, 1.0)), RandomHorizontalFlip(), ToTensor()]
    if task.options.get("fused"):
        window = [_fused_decoder(task.side), ToTensor()]
    pipelines = {"image": window if task.side else whole, "label": [IntDecoder(), ToTensor(), Squeeze()]}
    order = OrderOption.RANDOM
    loader = Loader(data, batch_size=task.batch, num_workers=task.jobs, order=order, os_cache=True, pipelines=pipelines, drop_last=True)
    return reader(task, data, lambda: loader)


def _fused_decoder(side: int) -> Any:
    """Return a decoder of raw pixels that cuts out and mirrors in the one copy: what a user of ffcv can write."""
    from dataclasses import replace

    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler

    class Fused(SimpleRGBImageDecoder):  # type: ignore[misc]
        """Numba compiles `decode`."""

        def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, Any]:
            shape, dtype = (side, side, 3), np.dtype("u1")
            return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

        def generate_code(self) -> Callable[..., Any]:
            mem_read, rows = self.memory_read, Compiler.get_iterator()

            def decode(indices: Any, destination: Any, metadata: Any, state: Any) -> Any:
                for row in rows(len(indices)):
                    field = metadata[indices[row]]
                    height, width = field["height"], field["width"]
                    image = mem_read(field["data_ptr"], state).reshape(height, width, 3)
                    top, left = np.random.randint(0, height - side + 1), np.random.randint(0, width - side + 1)
                    window = image[top : top + side, left : left + side]
                    if np.random.rand() < 0.5:
                        destination[row] = window[:, ::-1]
                    else:
                        destination[row] = window
                return destination[: len(indices)]

            decode.is_parallel = True  # type: ignore[attr-defined]
            return decode

    return Fused()


# litdata


def _litdata_sample(item: tuple[str, int], raw: bool = False) -> tuple[bytes, int]:
    content = read_file(item[0])
    return (pixels_of(content).tobytes() if raw else content), item[1]


def _litdata_raw_sample(item: tuple[str, int]) -> tuple[bytes, int]:
    return _litdata_sample(item, raw=True)


def _litdata_write(task: Task, path: str) -> None:
    import litdata

    sample = _litdata_raw_sample if task.encoding == "raw" else _litdata_sample
    litdata.optimize(
        fn=sample, inputs=files_of(task.source), output_dir=path, chunk_bytes="64MB", num_workers=task.jobs, mode="overwrite", verbose=False
    )


def litdata_build(task: Task) -> Turns:
    """Optimize the files into chunks."""
    return builder(task, lambda path: _litdata_write(task, path))


def _litdata_delivered(task: Task, sample: tuple[bytes, int]) -> tuple[Any, int]:
    return delivered(task, sample[0]), sample[1]


def litdata_read(task: Task) -> Turns:
    """Read with its own loader, shuffled."""
    import litdata

    data = once(f"{task.place}/{task.encoding}", lambda path: _litdata_write(task, path))
    images = litdata.StreamingDataset(data, shuffle=True, drop_last=True, transform=functools.partial(_litdata_delivered, task))
    loader = litdata.StreamingDataLoader(images, batch_size=task.batch, num_workers=task.jobs, persistent_workers=not task.cold)
    return reader(task, data, lambda: loader)


# MosaicML streaming


class _Standins(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importing `streaming` imports torchvision, whose wheel is built for CUDA, and transformers: gigabytes of which its own shards need
    only the names of a few classes.
    """

    def find_spec(self, name: str, *_: Any) -> Any:
        package = name.partition(".")[0]
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if package in ("torchvision", "transformers") else None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = lambda name: type(name, (), {})
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is complete."""


def _streaming() -> Any:
    sys.meta_path.insert(0, _Standins())
    import streaming

    return streaming


def _mds_write(task: Task, path: str) -> None:
    columns = {"image": "bytes", "label": "int"}
    with _streaming().MDSWriter(out=path, columns=columns, hashes=["xxh64"]) as writer:
        for content, label in Files(task.source, task.encoding):
            writer.write({"image": content, "label": label})


def mds_build(task: Task) -> Turns:
    """Write shards with a hash of each, in one process, as its documentation shows."""
    return builder(task, lambda path: _mds_write(task, path))


def mds_read(task: Task) -> Turns:
    """Read through a DataLoader, shuffled."""
    from torch.utils.data import DataLoader

    data = once(f"{task.place}/{task.encoding}", lambda path: _mds_write(task, path))

    class Images(_streaming().StreamingDataset):  # type: ignore[misc]
        """The images, decoded."""

        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return delivered(task, sample["image"]), sample["label"]

    images = Images(local=data, shuffle=True, batch_size=task.batch)
    loader = DataLoader(images, batch_size=task.batch, num_workers=task.jobs, persistent_workers=not task.cold, drop_last=True)
    return reader(task, data, lambda: loader)


# webdataset


def _webdataset_write(task: Task, path: str) -> None:
    import webdataset

    Path(path).mkdir()
    with webdataset.ShardWriter(path + "/%06d.tar", maxsize=64 << 20, verbose=0) as writer:
        for index, (content, label) in enumerate(Files(task.source, task.encoding)):
            writer.write({"__key__": f"{index:08d}", "image": content, "cls": label})


def webdataset_build(task: Task) -> Turns:
    """Write tar files, in one process."""
    return builder(task, lambda path: _webdataset_write(task, path))


def webdataset_read(task: Task) -> Turns:
    """Read tar files in shuffled order, and samples shuffled in a buffer."""
    import webdataset

    data = once(f"{task.place}/{task.encoding}", lambda path: _webdataset_write(task, path))
    shards = sorted(str(path) for path in Path(data).glob("*.tar"))
    images = webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False).shuffle(1000)
    images = images.to_tuple("image", "cls").map_tuple(lambda content: delivered(task, content), int)
    loader = webdataset.WebLoader(
        images.batched(task.batch, partial=True), batch_size=None, num_workers=task.jobs, persistent_workers=not task.cold
    )
    return reader(task, data, lambda: loader)


# tensorpack


def _tensorpack_write(task: Task, path: str) -> None:
    from tensorpack.dataflow import LMDBSerializer
    from tensorpack.dataflow.base import DataFlow

    files = Files(task.source, task.encoding)

    class Images(DataFlow):  # type: ignore[misc]
        """The files, one after the other."""

        def __iter__(self) -> Any:
            return ([content, label] for content, label in files)

        def __len__(self) -> int:
            return len(files)

    LMDBSerializer.save(Images(), path)


def tensorpack_build(task: Task) -> Turns:
    """Write an LMDB in one process, as its documentation shows."""
    return builder(task, lambda path: _tensorpack_write(task, path))


# PyTorch's DataLoader, over an LMDB and over a folder


def _lmdb_write(task: Task, path: str) -> None:
    import lmdb

    with lmdb.open(path, map_size=1 << 40, lib_version=0) as database:
        files = Files(task.source, task.encoding)
        for start in range(0, len(files), 256):
            with database.begin(write=True) as transaction:
                for index in range(start, min(start + 256, len(files))):
                    content, label = files[index]
                    transaction.put(b"%08d" % index, label.to_bytes(4, "little") + content, append=True)


class LmdbImages:
    """A map-style dataset over an LMDB that reads a whole batch into one tensor, which is its fastest form."""

    def __init__(self, task: Task, data: str) -> None:
        self.task, self.data, self.transaction = task, data, None  # type: tuple[Task, str, Any]
        self.images = len(files_of(task.source))

    def __len__(self) -> int:
        return self.images

    def __getitems__(self, indices: Sequence[int]) -> Any:
        import lmdb
        import torch

        if self.transaction is None:
            database = lmdb.open(self.data, readonly=True, lock=False, readahead=False, lib_version=0)
            self.transaction = database.begin(buffers=True)
        side = self.task.side or SIDE
        images = torch.empty((len(indices), side, side, 3), dtype=torch.uint8)
        labels = torch.empty(len(indices), dtype=torch.int64)
        rows = images.numpy()
        for row, index in enumerate(indices):
            value = self.transaction.get(b"%08d" % index)
            labels[row] = int.from_bytes(value[:4], "little")
            raw = self.task.encoding == "raw"
            image = np.frombuffer(value[4:], np.uint8).reshape(SIDE, SIDE, 3) if raw else pixels_of(bytes(value[4:]))
            if self.task.side:
                flip_crop(image, rows[row], side)
            else:
                rows[row] = image
        return images, labels


def dataloader_lmdb_read(task: Task) -> Turns:
    """Read an LMDB through a DataLoader."""
    from torch.utils.data import DataLoader

    data = once(f"{task.place}/{task.encoding}.lmdb", lambda path: _lmdb_write(task, path))
    loader: Any = DataLoader(
        LmdbImages(task, data),
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=task.jobs,
        persistent_workers=not task.cold,
        collate_fn=lambda batch: batch,
    )
    return reader(task, data, lambda: loader)


class FolderImages:
    """A folder of JPEGs that Pillow decodes, as torchvision's ImageFolder has it."""

    def __init__(self, task: Task) -> None:
        self.task, self.files = task, files_of(task.source)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image, ImageOps

        path, label = self.files[index]
        with Image.open(path) as opened:
            image: Any = opened.convert("RGB")
        if self.task.side:
            top, left = (random.randrange(SIDE - self.task.side + 1) for _ in range(2))
            image = image.crop((left, top, left + self.task.side, top + self.task.side))
            image = ImageOps.mirror(image) if random.random() < 0.5 else image
        return np.asarray(image).copy(), label


def dataloader_folder_read(task: Task) -> Turns:
    """Read a folder through a DataLoader."""
    from torch.utils.data import DataLoader

    images: Any = FolderImages(task)
    loader: Any = DataLoader(
        images, batch_size=task.batch, shuffle=True, drop_last=True, num_workers=task.jobs, persistent_workers=not task.cold
    )
    return reader(task, task.source, lambda: loader)
