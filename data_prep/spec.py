"""Check the `datasets:` entry of a study file: what a dataset is made from and what it shall become.

A specification is complete after validation: defaults that depend on the source are filled in, `size` is (height, width). `resolved` makes
its paths absolute; the digest of the resolved specification names the build directory, so a path is part of it. `as_written` keeps relative
paths; cells carry that specification, so that a project can be moved.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from blake3 import blake3
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from base import errors, humanize, jsonfile
from data_prep.sources.naming import TRAIN

SEQUENCE_KINDS: Final = ("text", "tokens")
"""Kinds of source that become sequences of token ids."""
_OF_SEQUENCES: Final = ("vocabulary", "sequence_length", "buckets")
_OF_KIND: Final[dict[str, tuple[str, ...]]] = {"text": ("documents", "words"), "tokens": ("id_type", "end")}
SEQUENCE_KEYS: Final = frozenset({*_OF_SEQUENCES, *_OF_KIND["text"], *_OF_KIND["tokens"]})
"""Keys that mean nothing for images."""
_MAX_WORDS: Final = 10_000
"""The default size of a vocabulary of words, with the end of a document and the unknown word."""
_DEFAULTS: Final[dict[str, dict[str, object]]] = {"text": {"documents": "file", "vocabulary": "bytes"}, "tokens": {"id_type": "uint16"}}


def _keys_of(kind: str) -> tuple[str, ...]:
    return ("source", "path", *_OF_SEQUENCES, "splits", "shards", "strict", *_OF_KIND[kind])


def _whose(key: str) -> str:
    kinds = [kind for kind, keys in _OF_KIND.items() if key in keys]
    return f"source: {kinds[0]}" if kinds else "token sequences" if key in SEQUENCE_KEYS else "images"


SourceKind = Literal[
    "folder",
    "list",
    "tar",
    "idx",
    "cifar",
    "caffe-lmdb",
    "lsun",
    "synthetic",
    "sklearn-digits",
    "text",
    "tokens",
    "files",
    "none",
]
Encoding = Literal["raw", "jpeg"]
Resize = Literal["squash", "crop", "fill"]
Channels = Literal["grey", "rgb"]
Layout = Literal["hwc", "caffe"]
ImageCheck = Literal["header", "decode"]
Statistics = Literal["sample", "all"]
Documents = Literal["file", "line"]
IdType = Literal["uint16", "uint32"]

MAX_SIDE = 8192
MAX_SHARDS = 100_000
MAX_LENGTH = 1 << 20
MAX_BUCKETS = 100
DEFAULT_SPLITS = {"test": 0.1}
OF_ONE_SIZE = ("idx", "caffe-lmdb")  # kinds of source that tell the size of their images when they are read
NATIVE_SIZE = {"sklearn-digits": (8, 8), "cifar": (32, 32)}  # height and width of kinds of source whose images have one size
WITHOUT_PATH = ("synthetic", "sklearn-digits", "none")
OTHER_KEYS: dict[str, tuple[str, ...]] = {
    "files": ("source", "path", "shards"),
    "none": ("source",),
    **{kind: _keys_of(kind) for kind in SEQUENCE_KINDS},
}
"""The keys with a meaning for the kinds of source that hold no images."""
_GREY = ("idx", "sklearn-digits")
_MADE = {"samples": 1024, "classes": 10, "seed": 0}


class SplitPath(BaseModel):
    """A split that lies in a folder, list or file of its own, of the same kind as the source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: StrictStr = Field(min_length=1, description="where this split lies; relative to the study file")


class PerClass(BaseModel):
    """Bounds on the samples of one class, counted before fractions are split off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: StrictInt = Field(default=1, ge=1, description="classes with fewer samples are left out, and listed in the manifest")
    max: StrictInt | None = Field(
        default=None, ge=1, description="no more samples than this of each class; the hash of the name chooses them"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        return self


def _as_size(value: Any) -> Any:
    """Convert `32` to (32, 32), and `[h, w]` to (h, w)."""
    sides = (value, value) if isinstance(value, int) and not isinstance(value, bool) else value
    if sides is None:
        return None
    if not isinstance(sides, (list, tuple)) or len(sides) != 2 or not all(type(side) is int for side in sides):
        raise ValueError(f"{value!r} is not a size: write one number of pixels, or [height, width]")
    if not all(1 <= side <= MAX_SIDE for side in sides):
        raise ValueError(f"{value!r} is not a size: sides go from 1 to {MAX_SIDE} pixels")
    return tuple(sides)


_SIZE_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_SIDE},
        {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": MAX_SIDE}, "minItems": 2, "maxItems": 2},
        {"type": "null"},
    ]
}
Size = Annotated[tuple[int, int] | None, BeforeValidator(_as_size), WithJsonSchema(_SIZE_SCHEMA)]
Fraction = Annotated[float, Field(gt=0, lt=1, strict=True)]
Length = Annotated[int, Field(ge=1, le=MAX_LENGTH, strict=True)]
MAX_VOCABULARY = (1 << 31) - 1


def _as_vocabulary(value: Any) -> Any:
    """Check a vocabulary. For a type with several branches, pydantic would name the valid values of the first one only."""
    if value in (None, "bytes", "words") or (type(value) is int and 3 <= value <= MAX_VOCABULARY):
        return value
    raise ValueError(f"found {value!r}; valid: bytes, words (source: text), a number of ids from 3 to {MAX_VOCABULARY} (source: tokens)")


Ids = Annotated[int, Field(ge=3, lt=1 << 31, strict=True)]
Vocabulary = Annotated[Literal["bytes", "words"] | Ids | None, BeforeValidator(_as_vocabulary)]


class DatasetSpec(BaseModel):
    """One entry of `datasets:`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: SourceKind = Field(description="kind of source: [sources](#sources)")
    path: StrictStr | None = Field(
        default=None,
        min_length=1,
        description="where the source lies; relative to the study file. Required except for `synthetic`, `sklearn-digits` and `none`. A "
        "relative path stays relative in cells and records, so that a project can be moved",
    )
    encoding: Encoding | None = Field(
        default=None, description="raw pixels (uint8) or JPEG. Default: `raw`; of `caffe-lmdb` as in the source"
    )
    size: Size = Field(
        default=None,
        description="pixels: one number or [height, width]. `null` keeps each image's own size. Training needs one size for all images. "
        "Default: `null`; of `synthetic` 32",
    )
    resize: Resize = Field(default="squash", description="`squash` to the size; `crop` the centre; `fill` up with black")
    channels: Channels | None = Field(
        default=None, description="colours. Default: `rgb`; of `idx` and `sklearn-digits` `grey`; of `caffe-lmdb` as in the source"
    )
    quality: StrictInt = Field(default=90, ge=1, le=100, description="quality of JPEGs that must be encoded again")
    splits: dict[StrictStr, Fraction | SplitPath] | None = Field(
        default=None,
        description="what does not go to `train`: name -> a fraction, or `{path: ...}` of the same kind as the source. Default: the "
        "source's own splits; `{test: 0.1}` if it has none",
    )
    per_class: PerClass = Field(
        default_factory=PerClass,
        description="bounds on the samples of a class, counted over what goes to `train` and the fractions: [per_class](#per_class)",
    )
    shards: StrictInt = Field(
        default=8,
        ge=1,
        le=MAX_SHARDS,
        description="LMDB files in all, at least one per split. Of `files`: how many jobs share the hashing. One job each",
    )
    layout: Layout | None = Field(
        default=None,
        description="order of raw pixels. `hwc`: height, width, channels in RGB. `caffe`: planes in BGR. Default: `hwc`; of "
        "`caffe-lmdb` with raw pixels `caffe`",
    )
    strict: StrictBool = Field(default=False, description="`true`: the dataset is refused if anything is rejected")
    max_rejected_ratio: Annotated[float, Field(ge=0, le=1, strict=True)] | None = Field(
        default=None, description="the dataset is refused if a larger part is rejected"
    )
    check: ImageCheck | None = Field(
        default=None,
        description="how JPEG files that are stored unchanged are checked. `header`: header, marks and end only. `decode`: every image "
        "is decoded. Default: `header`; with `encoding: raw` or `statistics: all` `decode`",
    )
    statistics: Statistics | None = Field(
        default=None,
        description="what mean and deviation in the manifest are computed from: a fixed sample of `train`, or all of it, which needs "
        "`check: decode`. Default: `sample`; with `mean_image: true` `all`",
    )
    mean_image: StrictBool = Field(
        default=False, description="`true`: the manifest also has the mean of each pixel of `train`; for images of one size only"
    )
    samples: StrictInt | None = Field(default=None, ge=1, le=10**9, description="`synthetic` only: number of images. Default: 1024")
    classes: StrictInt | None = Field(default=None, ge=1, le=10**6, description="`synthetic` only: number of classes. Default: 10")
    seed: StrictInt | None = Field(default=None, ge=0, lt=2**63, description="`synthetic` only: seed of the images. Default: 0")
    vocabulary: Vocabulary = Field(
        default=None,
        description="what a token is. `text`: `bytes` (the default) or `words`. `tokens`: the number of ids of its tokenizer, which is "
        "required",
    )
    words: Annotated[int, Field(ge=3, le=1_000_000, strict=True)] | None = Field(
        default=None, description="`text` with `vocabulary: words`: the most ids, for the most frequent words. Default: 10000"
    )
    documents: Documents | None = Field(default=None, description="`text` only: whether a file or a line is a document. Default: `file`")
    id_type: IdType | None = Field(default=None, description="`tokens` only: type of the ids in `.bin` files. Default: `uint16`")
    end: Annotated[int, Field(ge=0, lt=1 << 31, strict=True)] | None = Field(
        default=None, description="`tokens` only: the id that ends a document"
    )
    sequence_length: Length | None = Field(
        default=None, description="`text`, `tokens`: tokens of every sequence. Token sequences need `sequence_length` or `buckets`"
    )
    buckets: Annotated[list[Length], Field(min_length=1, max_length=MAX_BUCKETS)] | None = Field(
        default=None,
        description="`text`, `tokens`: lengths, the shortest first. Each document is a sequence, filled up to the shortest length that "
        "holds it",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self._check_path()
        self._check_other_keys()
        if self.has_sequences:
            self._complete_sequences()
        if not self.has_images:
            return self
        self._check_splits()
        self._fill_made()
        caffe = self.source == "caffe-lmdb"
        self._fill("encoding", None if caffe else "raw")
        self._fill("channels", None if caffe else "grey" if self.source in _GREY else "rgb")
        if self.layout == "caffe" and self.encoding == "jpeg":
            raise ValueError("layout: caffe orders raw pixels; with encoding: jpeg leave it out")
        self._fill("layout", "caffe" if caffe and self.encoding is None else "hwc")
        if self.source == "synthetic":
            self._fill("size", (32, 32))
        self._fill_check()
        if self.mean_image and self.known_size is None and self.source not in OF_ONE_SIZE:
            raise ValueError("mean_image: true needs images of one size; give size")
        return self

    def _fill_check(self) -> None:
        """Complete `statistics` and `check`: a mean image is made of all images of train, and statistics of all need all decoded."""
        if self.mean_image and self.statistics == "sample":
            raise ValueError(
                "statistics: found sample, and mean_image: true is made of all images of train; leave statistics out, or write all"
            )
        self._fill("statistics", self._later_defaults["statistics"])
        if self.check == "header" and self.statistics == "all":
            why = "mean_image: true" if self.mean_image else "statistics: all"
            raise ValueError(f"check: found header, and {why} needs every image decoded; leave check out, or write decode")
        if self.check == "header" and self.encoding == "raw":
            raise ValueError("check: found header, which is for encoding: jpeg; of raw pixels every image is decoded: leave check out")
        self._fill("check", self._later_defaults["check"])

    def _fill(self, key: str, value: Any) -> None:
        if getattr(self, key) is None and value is not None:
            object.__setattr__(self, key, value)

    def _check_path(self) -> None:
        needed = self.source not in WITHOUT_PATH
        if needed and self.path is None:
            raise ValueError(f"source: {self.source} needs a path")
        if not needed and self.path is not None:
            raise ValueError(f"source: {self.source} has no path: leave path out")
        for name, path in [("path", self.path), *self.split_paths.items()]:
            if path is not None:
                try:
                    humanize.absolute_path(path, Path())
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error

    def _check_other_keys(self) -> None:
        for key in sorted(self.model_fields_set):
            of_images = key not in SEQUENCE_KEYS or getattr(self, key) is None
            if not (of_images if self.has_images else key in OTHER_KEYS[self.source]):
                raise ValueError(f"{key} is for {_whose(key)}; with source: {self.source} leave it out")

    def _complete_sequences(self) -> None:
        for key, value in _DEFAULTS[self.source].items():
            self._fill(key, value)
        if self.vocabulary == "words":
            self._fill("words", _MAX_WORDS)
        problem = self._text_fault() if self.source == "text" else self._tokens_fault()
        if problem := problem or self._length_fault():
            raise ValueError(problem)
        self._check_splits()

    def _text_fault(self) -> str | None:
        if self.vocabulary not in ("bytes", "words"):
            return f"vocabulary: found {self.vocabulary!r}; with source: text valid: bytes, words (and words: how many)"
        if self.words is not None and self.vocabulary == "bytes":
            return "words is for vocabulary: words; leave it out"
        return None

    def _tokens_fault(self) -> str | None:
        if not isinstance(self.vocabulary, int):
            return "vocabulary: source: tokens needs the number of ids that its tokenizer has, such as vocabulary: 50257 for GPT-2's"
        if self.end is not None and self.end >= self.vocabulary:
            return f"end: {self.end} is not among the ids 0 to {self.vocabulary - 1} of the vocabulary"
        if self.buckets is not None and self.end is None:
            return "buckets: which sequence is how long is told by the id that ends a document: give end, such as end: 50256 for GPT-2's"
        return None

    def _length_fault(self) -> str | None:
        if (self.sequence_length is None) == (self.buckets is None):
            return (
                "exactly one is needed of sequence_length (all rows equally long) and buckets (a document is a row, lengths of the buckets)"
            )
        if self.buckets is not None and list(self.buckets) != sorted(set(self.buckets)):
            return f"buckets: {list(self.buckets)} are not in order, the shortest first, each once"
        return None

    def _check_splits(self) -> None:
        stated = DEFAULT_SPLITS if self.splits is None else self.splits
        for name, split in stated.items():
            if not humanize.is_name(name):
                raise ValueError(f"splits: {name!r} is not a valid name of a split: it must match {humanize.NAME.pattern}")
            if name == TRAIN:
                raise ValueError("splits: train is what the others leave; give path, or the fractions of the others")
            if isinstance(split, SplitPath) and self.source in WITHOUT_PATH:
                raise ValueError(f"splits: {name}: source: {self.source} has no path; give a fraction")
        total = sum(self.fractions(source_has_splits=False).values())
        if total >= 1:
            raise ValueError(f"splits: the fractions add up to {total:g}; less than 1 must be left for train")
        if self.shards < len(stated) + 1:
            others = ", ".join(stated)
            raise ValueError(
                f"shards: {self.shards} are too few for train and {others}: each split needs one (splits: {{}} is train alone)"
            )

    def _fill_made(self) -> None:
        for key, value in _MADE.items():
            if self.source == "synthetic":
                self._fill(key, value)
            elif getattr(self, key) is not None:
                raise ValueError(f"{key} is for source: synthetic only; with source: {self.source} leave it out")
        if self.samples is not None and self.classes is not None and self.samples < self.classes:
            raise ValueError(f"samples: {self.samples} are fewer than classes: {self.classes}")

    @property
    def has_images(self) -> bool:
        return self.source not in OTHER_KEYS

    @property
    def has_sequences(self) -> bool:
        return self.source in SEQUENCE_KINDS

    @property
    def is_tree(self) -> bool:
        return self.source == "files"

    @property
    def lengths(self) -> list[int]:
        """Return the lengths of the sequences in tokens: one, or those of the buckets."""
        return self.buckets or [self.sequence_length or 0]

    @property
    def row_words(self) -> str:
        """Describe the length of a row for messages."""
        return f"{self.sequence_length} tokens and one more" if self.buckets is None else f"2 to {self.buckets[-1] + 1} tokens"

    @property
    def known_size(self) -> tuple[int, int] | None:
        """Return height and width of the images, where the specification or its kind of source determines them."""
        return self.size or NATIVE_SIZE.get(self.source)

    @property
    def split_paths(self) -> dict[str, str]:
        return {name: split.path for name, split in sorted((self.splits or {}).items()) if isinstance(split, SplitPath)}

    def fractions(self, *, source_has_splits: bool) -> dict[str, float]:
        """Return the splits that are a part of train: the stated ones, else test: 0.1 of a source without splits."""
        default: dict[str, float | SplitPath] = {} if source_has_splits else dict(DEFAULT_SPLITS)
        stated = default if self.splits is None else self.splits
        return {name: split for name, split in stated.items() if not isinstance(split, SplitPath)}

    @property
    def _later_defaults(self) -> dict[str, object]:
        """Return the defaults of the keys that came later."""
        return {
            "mean_image": False,
            "statistics": "all" if self.mean_image else "sample",
            "check": "decode" if self.statistics == "all" or self.encoding == "raw" else "header",
        }

    def resolved(self, base_dir: Path) -> "DatasetSpec":
        """Make all paths absolute. Relative ones start at `base_dir`, the directory of the study file. Links are kept."""
        return self._with_paths(lambda path: _absolute(path, base_dir))

    def as_written(self) -> "DatasetSpec":
        """Return the specification with its relative paths in their shortest form. Paths that begin with `~` become absolute."""
        return self._with_paths(lambda path: _absolute(path, Path()) if path.startswith(("/", "~")) else os.path.normpath(path))

    def _with_paths(self, change: Callable[[str], str]) -> "DatasetSpec":
        splits = self.splits and {
            name: SplitPath(path=change(split.path)) if isinstance(split, SplitPath) else split for name, split in self.splits.items()
        }
        return self.model_copy(update={"path": self.path and change(self.path), "splits": splits})

    def to_json(self) -> dict[str, Any]:
        """Return all keys that have a meaning, for JSON; `DatasetSpec.model_validate` takes them back. Later keys are absent where they
        have their default, as in older specifications, by which the datasets that are built are found."""
        if self.has_images:
            later = [key for key, value in self._later_defaults.items() if getattr(self, key) == value]
            return self.model_dump(mode="json", exclude={*SEQUENCE_KEYS, *later})
        return self.model_dump(mode="json", include={*OTHER_KEYS[self.source]})


def _absolute(path: str, base_dir: Path) -> str:
    return str(humanize.absolute_path(path, base_dir))


def parse_spec(values: Any, base_dir: Path) -> DatasetSpec:
    """Parse a resolved specification from JSON values. Raises ConfigError with one line per wrong key."""
    try:
        return DatasetSpec.model_validate(values).resolved(base_dir)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in line['loc']) or 'dataset'}: {line['msg']}" for line in error.errors()]
        raise errors.ConfigError("the dataset's specification is wrong:\n" + "\n".join(lines)) from error


def spec_digest(spec: DatasetSpec | Mapping[str, object]) -> str:
    """Compute the blake3 of the specification's canonical JSON, 64 hex digits. The first 12 are the build directory's `spec12`."""
    return blake3(jsonfile.canonical_json(dict(spec) if isinstance(spec, Mapping) else spec.to_json())).hexdigest()


def spec12(spec: DatasetSpec | Mapping[str, Any]) -> str:
    """Return the 12 digits in the name of the build directory, `<storage>/datasets/.build/<name>-<spec12>/`."""
    return spec_digest(spec)[:12]
