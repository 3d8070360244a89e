"""What a cell's dataset and model need: samples and bytes, parameters and memory; read from what is built, else computed where possible.

Reads dataset.json, the manifest and plan.json where they are there, and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

from base.errors import SlipwayError
from base.jsonfile import read_json
from base.typed import Count, read_as
from containers.models import MODELS, Model, build, build_for_tokens, reads_tokens
from containers.models.memory import MemoryEstimate, estimate_memory
from data_prep.build.dataset_file import read_dataset_file
from data_prep.hashing import ChunkedFile
from data_prep.manifest import Manifest, read_manifest
from data_prep.sequences.ids import END_OF_BYTES
from data_prep.sequences.manifest import read_sequence_manifest
from data_prep.spec import DatasetSpec
from data_prep.tree.manifest import read_tree_manifest
from workflow.dag.image_file import images_file
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.study import Study

M = TypeVar("M")
CLASSES: Final = {"sklearn-digits": 10}
CHANNELS: Final = {"grey": 1, "rgb": 3}


@dataclass(frozen=True, kw_only=True)
class DatasetRequirements:
    """One dataset of a study. `root` is where it is published, None until it is built; numbers are None where nothing tells them.

    `bytes_are`: `built`, `estimated`, or `unknown until built`.
    """

    name: str
    spec: DatasetSpec
    root: Path | None
    samples: int | None
    bytes: int | None
    bytes_are: str
    channels: int | None
    size: tuple[int, int] | None
    num_classes: int | None
    manifest: Manifest | None
    """Of images."""
    vocabulary: int | None = None
    """Of token sequences."""
    length: int | None = None
    """Of token sequences: the most tokens that one may have."""
    in_a_batch: int | None = None
    """Of token sequences that are built: the largest number of training rows that may stand in one batch."""
    files: Sequence[ChunkedFile] | None = None
    """What is copied to the nodes, once that is known."""

    @property
    def train_samples(self) -> int | None:
        """Samples of the training split; about, while the dataset is not built. Of token sequences in buckets those of the largest one."""
        if self.in_a_batch is not None:
            return self.in_a_batch
        if self.manifest is not None:
            return self.manifest.splits["train"].samples if "train" in self.manifest.splits else None
        if self.samples is None:
            return None
        return round(self.samples * self._train_part)

    @property
    def most_train_samples(self) -> int | None:
        """More than these the training split has not: while the dataset is not built, six deviations above what is expected of a split by
        the hashes of the images."""
        if self.manifest is not None or self.in_a_batch is not None or self.samples is None:
            return self.train_samples
        deviation = math.sqrt(self.samples * self._train_part * (1 - self._train_part))
        return min(self.samples, math.ceil(self.samples * self._train_part + 6 * deviation))

    @property
    def _train_part(self) -> float:
        return 1 - sum(self.spec.fractions(source_has_splits=False).values())


def dataset_needs(study: Study, name: str) -> DatasetRequirements:
    """What is known of the dataset `name` now. A torn receipt or manifest counts as not built: the build says what is wrong with it."""
    spec = study.datasets[name]
    if spec.has_sequences:
        return _sequence_needs(study, name)
    if not spec.has_images:
        return _tree_needs(study, name)
    channels, size, classes = CHANNELS.get(spec.channels or ""), spec.known_size, spec.classes or CLASSES.get(spec.source)
    built = _root(study, name, read_manifest)
    if built is not None:
        root, manifest = built
        return DatasetRequirements(
            name=name,
            spec=spec,
            root=root,
            samples=manifest.samples,
            bytes=manifest.bytes,
            bytes_are="built",
            channels=manifest.channels,
            size=manifest.size or size,
            num_classes=len(manifest.classes),
            manifest=manifest,
            files=manifest.shards,
        )
    from data_prep.build.estimate import estimate, estimate_of

    plan = _plan(study.build_dir(name))
    guess = estimate_of(spec, plan["samples"]) if plan else estimate(spec)
    return DatasetRequirements(
        name=name,
        spec=spec,
        root=None,
        samples=guess.samples,
        bytes=guess.bytes,
        bytes_are="unknown until built" if guess.bytes is None else "estimated",
        channels=channels,
        size=size,
        num_classes=plan["classes"] if plan else classes,
        manifest=None,
        files=None,
    )


def model_of(cell: Cell, needs: DatasetRequirements | None) -> Model | None:
    """The cell's network for the samples of its dataset; None while those are not known, or where only its program knows it."""
    asked = None if needs is None else _asked_of(cell.model, needs)
    return None if asked is None else _model(cell.model, *asked)


def memory_of(cell: Cell, needs: DatasetRequirements | None) -> MemoryEstimate | None:
    """What one process of the cell needs on its device, at the least; None while the dataset or the network is not known."""
    asked = None if needs is None else _asked_of(cell.model, needs)
    if asked is None:
        return None
    one = _memory_of_one(cell.model, *asked, cell.mode, cell.precision)
    return MemoryEstimate(parameter_bytes=one.parameter_bytes, activation_bytes=one.activation_bytes * cell.batch_size)


_Asked = tuple[int, tuple[int, ...], int]
"""What a network of ours is built for: channels, size and classes of images; or 1, the length of sequences, and the vocabulary."""


def _asked_of(model: str, needs: DatasetRequirements) -> _Asked | None:
    if model not in MODELS:
        return None
    if reads_tokens(model):
        return None if needs.vocabulary is None or needs.length is None else (1, (needs.length,), needs.vocabulary)
    if needs.channels is None or needs.size is None or needs.num_classes is None:
        return None
    return needs.channels, needs.size, needs.num_classes


@lru_cache(maxsize=256)
def _model(name: str, channels: int, size: tuple[int, ...], answers: int) -> Model:
    return build_for_tokens(name, answers, size[0]) if len(size) == 1 else build(name, channels, (size[0], size[1]), answers)


@lru_cache(maxsize=1024)
def _memory_of_one(name: str, channels: int, size: tuple[int, ...], answers: int, mode: str, precision: str) -> MemoryEstimate:
    return estimate_memory(_model(name, channels, size, answers).layers, 1, mode=mode, precision=precision)


def _sequence_needs(study: Study, name: str) -> DatasetRequirements:
    """Of token sequences: as they were built, else what the specification says."""
    spec = study.datasets[name]
    found = _root(study, name, read_sequence_manifest)
    manifest = None if found is None else found[1]
    told = {"text": END_OF_BYTES + 1 if spec.vocabulary == "bytes" else None, "tokens": spec.vocabulary}[spec.source]
    return DatasetRequirements(
        name=name,
        spec=spec,
        root=None if found is None else found[0],
        samples=None if manifest is None else manifest.samples,
        bytes=None if manifest is None else manifest.bytes,
        bytes_are="unknown until built" if manifest is None else "built",
        channels=None,
        size=None,
        num_classes=None,
        manifest=None,
        vocabulary=manifest.vocabulary if manifest is not None else told if isinstance(told, int) else None,
        length=max(spec.lengths),
        in_a_batch=None if manifest is None else max(samples for samples, _ in manifest.groups("train").values()),
        files=None if manifest is None else manifest.shards,
    )


def _tree_needs(study: Study, name: str) -> DatasetRequirements:
    """Of a tree of files: as it was hashed, else as it lies there now."""
    spec = study.datasets[name]
    found = _root(study, name, read_tree_manifest)
    num_bytes = _tree_bytes(spec) if found is None else found[1].bytes
    return DatasetRequirements(
        name=name,
        spec=spec,
        root=None if found is None else found[0],
        samples=None,
        bytes=num_bytes,
        bytes_are="built" if found is not None else "unknown until built" if num_bytes is None else "estimated",
        channels=None,
        size=None,
        num_classes=None,
        manifest=None,
        files=None if found is None else found[1].files,
    )


def _tree_bytes(spec: DatasetSpec) -> int | None:
    """Of what lies there now; None where it cannot be listed, which its build says."""
    from data_prep.tree.listing import list_tree

    try:
        return sum(file.bytes for file in list_tree(Path(spec.path or "")).files)
    except SlipwayError:
        return None


def _root(study: Study, name: str, read: Callable[[Path], M]) -> tuple[Path, M] | None:
    """Where the dataset is published, and its manifest."""
    receipt = study.build_dir(name) / "dataset.json"
    if not receipt.exists():
        return None
    try:
        root = study.datasets_dir / read_dataset_file(receipt.parent).path
        return root, read(root)
    except SlipwayError:
        return None


class _PlannedShard(TypedDict):
    samples: Count


class _Planned(TypedDict):
    shards: list[_PlannedShard]
    classes: list[str]


def _plan(build_dir: Path) -> dict[str, Any] | None:
    path = build_dir / "plan.json"
    if not path.exists():
        return None
    try:
        plan = read_as(_Planned, read_json(path), path)
    except SlipwayError:
        return None
    return {"samples": sum(shard["samples"] for shard in plan["shards"]), "classes": len(plan["classes"])}


def is_prepared(study: Study, runs: Iterable[Run]) -> bool:
    """Whether the datasets of these runs are built, and the study's images pinned, so that a job need not do it first."""
    images, names = images_file(study), datasets_of(run.cell for run in runs)
    return (images is None or Path(images).exists()) and all((study.build_dir(name) / "dataset.json").exists() for name in names)
