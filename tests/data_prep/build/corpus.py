"""Tiny sources made on the fly, a build in this process, and an independent reading of what came out."""

import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from data_prep.build.shard import KIND as IMAGES
from data_prep.build.steps import BuiltDataset
from data_prep.manifest import Manifest, read_manifest
from data_prep.reader.datum import parse
from data_prep.spec import parse_spec

Pixels = NDArray[np.uint8]


def pixels(seed: int, height: int = 8, width: int = 8, channels: int = 3) -> Pixels:
    """An image that no other seed has."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(image: Pixels | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image file."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def write(path: Path, content: bytes) -> Path:
    """A file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def class_folders(root: Path, counts: Mapping[str, int], kind: str = "PNG", size: int = 8) -> Path:
    """A folder of class folders; image i of class c has its own seed."""
    for number, (name, count) in enumerate(counts.items()):
        for index in range(count):
            write(root / name / f"{index:03d}.{kind.lower()}", encoded(pixels(1000 * number + index, size, size), kind))
    return root


def tar_of(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A tar archive with these files, or these headers without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                archive.addfile(member)
    return out.getvalue()


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """An IDX file of unsigned bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def prepared(tmp_path: Path, spec: Mapping[str, Any], name: str = "set") -> Path:
    """A build directory with a plan in it."""
    build_dir = tmp_path / "datasets" / ".build" / f"{name}-0"
    IMAGES.plan(parse_spec(dict(spec), tmp_path), name, build_dir)
    return build_dir


def build(tmp_path: Path, spec: Mapping[str, Any], name: str = "set") -> tuple[Path, Manifest]:
    """Plan, all shards, finish, in this process: the dataset's directory and its manifest."""
    built = build_in(prepared(tmp_path, spec, name))
    root = tmp_path / "datasets" / built.path
    return root, read_manifest(root)


def build_in(build_dir: Path) -> BuiltDataset:
    """All shards of a plan, last one first, and finish."""
    count = len(list((build_dir / "samples").iterdir()))
    for index in reversed(range(count)):
        IMAGES.build(build_dir, index)
    return IMAGES.finish(build_dir, build_dir.parent.parent)


def read_back(root: Path, split: str | None = None) -> list[tuple[Pixels, str]]:
    """(pixels (H, W, C) RGB or grey, class name) of every sample, in the order of shards and keys; keys are checked."""
    manifest = read_manifest(root)
    found = []
    for shard in manifest.shards:
        if split in (None, shard.split):
            with lmdb.open(str(root / shard.name), readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
                entries = list(txn.cursor())
            assert [key for key, _ in entries] == [b"%08d" % index for index in range(shard.samples)]
            found += [(_image(value, manifest), manifest.classes[parse(value).label]) for _, value in entries]
    return found


def stored(root: Path) -> list[bytes]:
    """The data of every Datum."""
    manifest = read_manifest(root)
    found = []
    for shard in manifest.shards:
        with lmdb.open(str(root / shard.name), readonly=True, lock=False, lib_version=0) as env, env.begin() as txn:
            found += [bytes(parse(value).data) for _, value in txn.cursor()]
    return found


def _image(value: bytes, manifest: Manifest) -> Pixels:
    datum = parse(value)
    if datum.encoded:
        with Image.open(io.BytesIO(datum.data)) as image:
            shown = np.asarray(image.convert("RGB" if manifest.channels == 3 else "L"))
            return shown.reshape(datum.height, datum.width, manifest.channels)
    raw = np.frombuffer(datum.data, np.uint8)
    if manifest.layout == "caffe":
        return raw.reshape(datum.channels, datum.height, datum.width)[::-1].transpose(1, 2, 0)
    return raw.reshape(datum.height, datum.width, datum.channels)


def reasons(manifest: Manifest) -> dict[str, str]:
    """What was rejected: {name: reason}."""
    return {entry["name"]: entry["reason"] for entry in manifest.rejected}
