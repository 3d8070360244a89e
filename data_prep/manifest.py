"""Read, write and verify the manifest: what a dataset holds and the hash of every part of it. Its own digest is the dataset's name.

`manifest.json` is canonical JSON without time stamps, host names or absolute paths, so that the same source and specification give the same
digest anywhere. Reading checks everything: a manifest on shared storage may have been written by another user.
"""

import base64
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from blake3 import blake3

from base.errors import DatasetError, DigestMismatch
from base.humanize import some
from base.jsonfile import canonical_json, parse_json, plain, read_content
from base.sanitize import text
from base.typed import Count, Name, read_as
from data_prep.hashing import ChunkedFile, hash_file, require
from data_prep.sources.naming import TRAIN, printable

SCHEMA = "slipway.dataset/1"
FORMAT = "lmdb-0.9"
FILE_NAME = "manifest.json"
DATA_NAME = "data.mdb"
MAX_BYTES = 1 << 30
M = TypeVar("M")
AGAIN = "build the dataset again, or fetch it again from storage"

_SHOWN = 20
_SHARD_NAME = re.compile(r"shard-\d{5,6}\.lmdb")
_NAMED = re.compile(r".+-([0-9a-f]{12})")
_DIGEST = re.compile(r"[0-9a-f]{64}")

Progress = Callable[[int, int], None]
"""A function that is called with what is done, and what is to do in all."""


def silent(_done: int, _total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, kw_only=True)
class Shard(ChunkedFile):
    """A shard, one LMDB directory. `bytes` and the hashes are those of its `data.mdb`, in chunks of `chunk_bytes`."""

    split: str
    """the split that it belongs to"""
    samples: Count
    """number of samples"""
    blake3: str
    """BLAKE3 of its `data.mdb`"""

    def __post_init__(self) -> None:
        require(_SHARD_NAME.fullmatch(self.name) is not None, f"{self.name!r} is not a name of a shard")
        super().__post_init__()
        require(_DIGEST.fullmatch(self.blake3) is not None, f"{self.name}: a hash has the wrong form")

    @property
    def path(self) -> str:
        return f"{self.name}/{DATA_NAME}"


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split. `shards` are positions in the manifest's list; `class_counts` has one number per class."""

    samples: Count
    """number of samples"""
    shards: tuple[Count, ...]
    """positions in the manifest's `shards`"""
    class_counts: tuple[Count, ...]
    """samples of each class"""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json` of images."""

    name: Name
    """name of the dataset in the study"""
    encoding: str
    """`raw` or `jpeg`"""
    layout: str
    """`hwc` or `caffe`"""
    channels: int
    """1 or 3"""
    size: tuple[int, int] | None
    """`[height, width]` in pixels; null: images differ"""
    resize: str
    """how images got that size"""
    classes: tuple[str, ...]
    """names of the classes; the label is the position"""
    splits: Mapping[str, Split]
    """the splits, by name"""
    mean: tuple[float, ...]
    """mean of the decoded pixels of `train`, 0 to 255, one per channel"""
    std: tuple[float, ...]
    """their standard deviation"""
    samples: Count
    """samples in all"""
    bytes: Count
    """bytes of the `data.mdb` files"""
    shards: tuple[Shard, ...]
    """the shards"""
    source: Mapping[str, Any]
    """`kind`, `listing_blake3` (of names, classes and sizes of what was taken) and the keys that decided what was taken"""
    rejected: tuple[Mapping[str, str], ...]
    """the first 1,000 rejected samples by name, as `{name, reason}`"""
    rejected_count: Count
    """rejected samples in all"""
    left_out_classes: tuple[str, ...]
    """classes with fewer samples than `per_class.min`"""
    mean_image: str | None = None
    """mean of each pixel of `train`, 0 to 255, as base64 of little-endian float32 in the order height, width, channels; absent unless
    `mean_image: true`"""
    check: str = "decode"
    """`header` if JPEG files were stored without decoding each of them; absent if every image was decoded"""
    statistics_samples: Count | None = None
    """number of images of `train` that mean and deviation are computed from; absent if it was all"""
    schema: str = SCHEMA
    """`slipway.dataset/1`"""
    format: str = FORMAT
    """`lmdb-0.9`"""
    value: str = "caffe-datum"
    """`caffe-datum`"""
    key: str = "%08d"
    """form of the keys in a shard"""

    def __post_init__(self) -> None:
        require(self.format == FORMAT and self.value == "caffe-datum" and self.key == "%08d", "format, value or key is unknown")
        require(self.encoding in ("raw", "jpeg") and self.layout in ("hwc", "caffe"), "encoding or layout is unknown")
        require(self.channels in (1, 3), f"channels is {self.channels}, not 1 or 3")
        require(self.size is None or (len(self.size) == 2 and min(self.size) > 0), f"size is {self.size}")
        require(self.size is not None or self.encoding == "jpeg", "raw images without a size")
        require(len(self.mean) == len(self.std) == self.channels, "mean and std need one number per channel")
        require(self.check in ("header", "decode"), f"check is {self.check!r}, not header or decode")
        if self.statistics_samples is not None:
            train = self.splits.get(TRAIN)
            require(0 < self.statistics_samples <= (train.samples if train else 0), "statistics_samples is no number of samples of train")
        if self.mean_image is not None:
            height, width = self.size or (0, 0)
            pixels = array("f", base64.b64decode(self.mean_image, validate=True))
            require(len(pixels) == height * width * self.channels > 0, "mean_image does not fit size and channels")
            require(all(0 <= pixel <= 255 for pixel in pixels), "mean_image has pixels that are not from 0 to 255")
        require(self.bytes == sum(shard.bytes for shard in self.shards), "bytes is not the sum over the shards")
        require(self.samples == sum(shard.samples for shard in self.shards), "samples is not the sum over the shards")
        self._check_splits()

    def _check_splits(self) -> None:
        check_splits(self.splits, self.shards, "samples")
        for name, split in self.splits.items():
            require(len(split.class_counts) == len(self.classes), f"split {name!r}: class_counts does not fit the classes")
            require(split.samples == sum(split.class_counts), f"split {name!r}: class_counts does not add up to samples")


class SplitOfShards(Protocol):
    """A split of any manifest of shards."""

    @property
    def shards(self) -> tuple[int, ...]: ...


def check_splits(splits: Mapping[str, SplitOfShards], shards: Sequence[Shard], *sums: str) -> None:
    """Check that the splits share out the shards, and that these keys of each are the sums over its shards. Raises ValueError."""
    require(len({shard.name for shard in shards}) == len(shards), "two shards have the same name")
    positions = sorted(position for split in splits.values() for position in split.shards)
    require(positions == list(range(len(shards))), "the splits do not share out the shards")
    for name, split in splits.items():
        held = [shards[position] for position in split.shards]
        require(all(shard.split == name for shard in held), f"split {name!r}: a shard names another split")
        for key in sums:
            total = sum(getattr(shard, key) for shard in held)
            require(getattr(split, key) == total, f"split {name!r}: {key} is not the sum over its shards")


class AnyManifest(Protocol):
    """A manifest of any kind."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...


def to_json(manifest: AnyManifest) -> dict[str, Any]:
    """Return the content of `manifest.json`, without later keys that have their defaults: as it was before there were these keys."""
    later = {"mean_image": None, "check": "decode", "statistics_samples": None}
    return {key: value for key, value in plain(manifest).items() if key not in later or value != later[key]}


def to_bytes(manifest: AnyManifest) -> bytes:
    """Encode `manifest.json`, with a newline at the end."""
    return canonical_json(to_json(manifest)) + b"\n"


def digest_of(content: bytes) -> str:
    """Return the digest, 64 hex digits, of the dataset whose manifest has these bytes."""
    return blake3(content).hexdigest()


def manifest_digest(root: Path) -> str:
    """Compute the digest of the dataset in `root` from its manifest. Raises DatasetError when there is none."""
    return digest_of(read_bytes(root))


def read_manifest(root: Path) -> Manifest:
    """Read and check the manifest in the directory `root`. Raises DatasetError naming the file and what is wrong with it."""
    return read_manifest_as(Manifest, root)


def parse_manifest(content: bytes, where: str = FILE_NAME) -> Manifest:
    """Parse the bytes of a manifest; `where` starts the error message. Raises DatasetError."""
    return manifest_as(Manifest, parse_json(content, where, DatasetError), where)


def manifest_as(kind: type[M], plain: Any, where: str) -> M:
    """Convert the JSON value of a manifest of this kind. Raises DatasetError."""
    found, wanted = plain.get("schema") if isinstance(plain, dict) else None, vars(kind)["schema"]
    if found != wanted:
        raise DatasetError(
            f"{where} is not a valid manifest: schema: expected {wanted}, found {text(found, 80)}, of another version of Slipway; {AGAIN}"
        )
    return read_as(kind, plain, f"{where} is not a valid manifest", DatasetError, AGAIN)


def read_manifest_as(kind: type[M], root: Path) -> M:
    """Read a manifest of this kind in the directory `root`. Raises DatasetError."""
    return manifest_as(kind, parse_json(read_bytes(root), root / FILE_NAME, DatasetError), str(root / FILE_NAME))


def verify_files(root: Path, files: Sequence[tuple[Path, ChunkedFile]], progress: Progress, where: Path, advice: str) -> None:
    """Verify the files of the dataset in `root` at their paths, and its name. `where` and `advice` are for the message of DigestMismatch,
    which names every file and chunk that is not what the manifest promises."""
    problems = name_problems(root)
    done, in_all = 0, sum(file.bytes for _, file in files)

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, in_all)

    for path, file in files:
        problems += [f"{printable(file.name)}: {problem}" for problem in chunk_problems(path, file, advance)]
    if problems:
        raise DigestMismatch(f"{where} is not what its manifest promises:\n{some(problems, _SHOWN, chr(10))}\n{advice}")


def name_problems(root: Path) -> list[str]:
    """Compare the name of the directory `root` with its manifest, and return the faults. Raises DatasetError."""
    named, digest = _NAMED.fullmatch(root.name), manifest_digest(root)
    if named is None or digest.startswith(named.group(1)):
        return []
    return [f"{FILE_NAME} has the digest {digest[:12]}, the directory's name promises {named.group(1)}"]


def chunk_problems(path: Path, file: ChunkedFile, advance: Callable[[int], None]) -> list[str]:
    """Compare the file at `path` with its hashes, and return the faults. Raises DatasetError where it is no file."""
    try:
        found = hash_file(path, file.chunk_bytes, advance, stored=True)
    except OSError as error:
        return [str(error.strerror)]
    if found.bytes != file.bytes:
        return [f"{found.bytes} bytes, expected {file.bytes}"]
    wrong = [index for index, (is_, should) in enumerate(zip(found.chunks, file.chunks, strict=True)) if is_ != should]
    if wrong:
        return [f"chunk {index} of {len(file.chunks)} differs" for index in wrong]
    whole = getattr(file, "blake3", found.blake3)
    return [] if found.blake3 == whole else ["blake3 differs although every chunk agrees: the manifest is wrong"]


def read_bytes(root: Path) -> bytes:
    """Read the bytes of the manifest in `root`. Raises DatasetError when there is none."""
    try:
        return read_content(root / FILE_NAME, DatasetError, MAX_BYTES)
    except DatasetError as error:
        raise DatasetError(f"{root} is not a dataset: {error}") from error
