"""Read and write the manifest of a dataset of token sequences: the hash of every part, and its own digest is the dataset's name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.typed import Count, FromOne, Name
from data_prep.hashing import require
from data_prep.manifest import FORMAT, Shard, check_splits, read_manifest_as

# Token ids


MAX_IDS: Final = 2**31 - 1
"""The largest size of a vocabulary, since programs hold ids as 32-bit numbers with a sign."""
END_OF_BYTES: Final = 256
"""The vocabulary of bytes: 0 to 255, and the end of a document."""
END_OF_WORDS: Final = 0
UNKNOWN: Final = 1
"""The vocabulary of words: the end of a document, any word that is not among the most frequent, and these, the most frequent first."""


def width_of(vocabulary: int) -> int:
    """Return the bytes per id that leave one number for the padding. Ids lie in files as little-endian numbers of 2 or 4 bytes."""
    return 2 if vocabulary < 1 << 16 else 4


def type_of(width: int) -> str:
    """Return numpy's name of the type of ids of this width."""
    return f"<u{width}"


def pad_of(width: int) -> int:
    """Return the number that stands for no token and fills up the end of a row, the largest of this width."""
    return (1 << 8 * width) - 1


SCHEMA: Final = "slipway.sequences/1"
VALUE: Final = "token-rows"


@dataclass(frozen=True, kw_only=True)
class SequenceShard(Shard):
    """A shard of `samples` rows of `length` + 1 ids each. A value holds `rows` of them, the last one fewer. `tokens` counts the ids that
    are targets."""

    length: FromOne
    """tokens of a sequence that are targets"""
    rows: FromOne
    """sequences in one value"""
    tokens: Count
    """ids that are targets"""


@dataclass(frozen=True, kw_only=True)
class SequenceSplit:
    """A split of the dataset. `shards` are positions in the manifest's list, those of shorter rows first."""

    samples: Count
    tokens: Count
    shards: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class SequenceManifest:
    """The content of `manifest.json` of token sequences."""

    name: Name
    """name of the dataset in the study"""
    vocabulary: FromOne
    """number of ids"""
    words: tuple[str, ...] | None
    """the words of the ids from 2 on; null unless `vocabulary: words`"""
    id_bytes: int
    """bytes of an id: 2 below 65,536 ids, otherwise 4"""
    end: Count | None
    """the id that ends a document"""
    lengths: tuple[FromOne, ...]
    """lengths of the buckets"""
    splits: Mapping[str, SequenceSplit]
    """the splits, by name, with `samples`, `tokens`, `shards`"""
    samples: Count
    """sequences in all"""
    tokens: Count
    """ids that are targets, without padding"""
    bytes: Count
    """bytes of the `data.mdb` files"""
    shards: tuple[SequenceShard, ...]
    """as for images, and `length`, `tokens`, `rows`"""
    source: Mapping[str, Any]
    """as for images"""
    rejected: tuple[Mapping[str, str], ...]
    """as for images"""
    rejected_count: Count
    """as for images"""
    schema: str = SCHEMA
    """`slipway.sequences/1`"""
    format: str = FORMAT
    """`lmdb-0.9`"""
    value: str = VALUE
    """`token-rows`"""
    key: str = "%08d"
    """form of the keys in a shard"""

    def __post_init__(self) -> None:
        require((self.format, self.value, self.key) == (FORMAT, VALUE, "%08d"), "format, value or key is unknown")
        require(self.vocabulary <= MAX_IDS and self.id_bytes == width_of(self.vocabulary), "id_bytes does not fit the vocabulary")
        require(self.words is None or len(self.words) == self.vocabulary - 2, "words does not fit the vocabulary")
        require(bool(self.lengths) and list(self.lengths) == sorted(set(self.lengths)), "lengths are none, or not in order")
        require(all(shard.length in self.lengths and shard.tokens <= shard.samples * shard.length for shard in self.shards), "a shard")
        for key in ("bytes", "samples", "tokens"):
            require(getattr(self, key) == sum(getattr(shard, key) for shard in self.shards), f"{key} is not the sum over the shards")
        check_splits(self.splits, self.shards, "samples", "tokens")
        for name, split in self.splits.items():
            lengths = [self.shards[position].length for position in split.shards]
            require(lengths == sorted(lengths), f"split {name!r}: buckets are not in order")

    def groups(self, split: str) -> dict[int, tuple[int, int]]:
        """Return the rows and tokens of each bucket of a split, by length."""
        found: dict[int, tuple[int, int]] = {}
        for position in self.splits[split].shards:
            shard = self.shards[position]
            samples, tokens = found.get(shard.length, (0, 0))
            found[shard.length] = (samples + shard.samples, tokens + shard.tokens)
        return found


def padding(groups: Mapping[int, tuple[int, int]]) -> float:
    """Return which part of the rows is padding, since the rows of a bucket are filled up to one length."""
    places = sum(length * samples for length, (samples, _) in groups.items())
    return 1 - sum(tokens for _, tokens in groups.values()) / places if places else 0.0


def read_sequence_manifest(root: Path) -> SequenceManifest:
    """Read the manifest in the directory `root`. Raises DatasetError."""
    return read_manifest_as(SequenceManifest, root)
