"""Read what a run works with from storage: framework, dataset, network, pinned image, kept programs. In a child with a time limit."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from base import errors, jsonfile, publish, system
from containers.images.model import StudyImage
from containers.models import MODELS, Model, build, build_for_tokens
from containers.program_folder import copy
from workflow.run.plan import Framework, check_framework, describe_framework, taken_along
from workflow.study import paths, publishing
from workflow.study.cell import OF_TOKENS, Cell
from workflow.study.site import Site

if TYPE_CHECKING:
    from data_prep.manifest import Manifest
    from data_prep.sequences.manifest import SequenceManifest


class PublishedDataset(Struct, frozen=True, kw_only=True):
    """A dataset as it lies on storage."""

    name: str
    digest: str
    path: str
    samples: int | None
    bytes: int
    splits: dict[str, int] | None
    """Samples of each; of a tree of files nobody knows them."""
    check: str | None = None
    """`decode` where every image was decoded when the dataset was built, else `header`. None of other data."""
    statistics_samples: int | None = None
    """The number of images that mean and deviation are made of. None: all of train."""


class Work(Struct, frozen=True, kw_only=True):
    """What a run works with."""

    framework: Framework
    dataset: PublishedDataset | None
    """The dataset; None if nothing is staged."""
    train_samples: int
    model: Model | None
    """The model; None if only the cell's own program knows its network."""
    macs_by_length: tuple[tuple[int, int], ...]
    """The buckets of sequences: the length of each, and the multiply-adds of a token in it, of `model`."""
    image: StudyImage | None
    """The image; None if runs are no containers."""


def describe_work(site: Site, cell: Cell, device: str, images: str | None, results: str, build: str) -> Work:  # noqa: PLR0913
    """Return what a cell works with, and keep the files of its own program in `results`. `images`: the file of
    workflow.run.images; `build`: the name of the directory in which the dataset is built. Raises ConfigError, UnsupportedRequest,
    DatasetError, ContainerError, StagingError, StorageError."""
    from workflow.run.images import image_of

    framework = taken_along(describe_framework(cell, device))
    check_framework(framework, cell.nodes)
    keep_program(Path(results), framework)
    dataset, manifest = describe_dataset(site.storage, cell, build) if cell.has_dataset else (None, None)
    return Work(
        framework=framework,
        dataset=dataset,
        train_samples=trained_samples(manifest, cell.global_batch_size),
        model=None if cell.model not in MODELS or manifest is None else model_for(cell, manifest),
        macs_by_length=() if cell.model not in MODELS else macs_by_length(cell.model, manifest),
        image=None if images is None else image_of(images, site.engine, cell.framework),
    )


def build_name(cell: Cell) -> str:
    """Name the build of a dataset with absolute paths `<name>-<spec12>`: the digest of data_prep.spec, without its models, which cost
    start-up time."""
    from blake3 import blake3

    return f"{cell.dataset}-{blake3(jsonfile.canonical_json(cell.dataset_spec)).hexdigest()[:12]}"


def build_of(study: publishing.ResolvedStudy, cell: Cell) -> str:
    """Return where the dataset of a cell is built, as study.json names it; studies of earlier versions do not, and have `build_name`."""
    return study.datasets.get(cell.dataset) or build_name(cell)


def trained_samples(manifest: Manifest | SequenceManifest | None, global_batch: int) -> int:
    """Count the samples of the training split; of sequences in buckets those that an epoch uses, since each batch is of one bucket."""
    from data_prep.sequences.manifest import SequenceManifest

    if manifest is None or "train" not in manifest.splits:
        return 0
    if not isinstance(manifest, SequenceManifest) or len(manifest.lengths) == 1:
        return manifest.splits["train"].samples
    return sum(samples // global_batch * global_batch for samples, _ in manifest.groups("train").values())


def describe_dataset(storage: Path, cell: Cell, build: str) -> tuple[PublishedDataset, Manifest | SequenceManifest | None]:
    """Return the published dataset, and its manifest if it is one of images or token sequences. Raises DatasetError."""
    from data_prep.build.steps import read_dataset_file
    from data_prep.manifest import read_manifest
    from data_prep.sequences.manifest import read_sequence_manifest

    datasets = paths.datasets_dir(storage)
    built = read_dataset_file(datasets / ".build" / build)
    path = datasets / built.path
    read = read_sequence_manifest if cell.dataset_spec["source"] in OF_TOKENS else read_manifest
    manifest = None if cell.data_folder else read(path)
    splits = None if manifest is None else {name: split.samples for name, split in manifest.splits.items()}
    found = PublishedDataset(
        name=built.name,
        digest=built.digest,
        path=str(path),
        samples=built.samples,
        bytes=built.bytes,
        splits=splits,
        check=getattr(manifest, "check", None),
        statistics_samples=getattr(manifest, "statistics_samples", None),
    )
    return found, manifest


def model_for(cell: Cell, manifest: Manifest | SequenceManifest) -> Model:
    """Return the cell's network for a dataset of images or tokens."""
    from data_prep.sequences.manifest import SequenceManifest

    if isinstance(manifest, SequenceManifest):
        return build_for_tokens(cell.model, manifest.vocabulary, manifest.lengths[-1])
    if manifest.size is None:
        raise errors.UnsupportedRequest(f"the images of dataset {manifest.name!r} have different sizes; give it a `size` to train on it")
    return build(cell.model, manifest.channels, cell.size_read(manifest.size), len(manifest.classes))


def macs_by_length(name: str, manifest: Manifest | SequenceManifest | None) -> tuple[tuple[int, int], ...]:
    """Return Work.macs_by_length."""
    from data_prep.sequences.manifest import SequenceManifest

    if not isinstance(manifest, SequenceManifest) or len(manifest.lengths) == 1:
        return ()
    return tuple((length, build_for_tokens(name, manifest.vocabulary, length).macs) for length in manifest.lengths)


# Kept programs: `<results>/programs/<digest>/` holds one copy of each state of a program's folder.
#
# A table of last year can be traced to the code that made it only where that code is still there: people go on editing their folders.


logger = logging.getLogger(__name__)
DEAD_S: Final = 3600.0
"""The age at which a copy that is not finished is nobody's: the call that makes one ends within minutes."""


def keep_program(results: Path, framework: Framework) -> None:
    """Copy the folder of `framework` there, unless its state is there already; nothing where it has none. Raises StagingError where the
    folder is not of that digest any more, ConfigError, StorageError."""
    if framework.digest is None:
        return
    target = paths.kept_program(results, framework.digest)
    if target.is_dir():
        return
    part = publish.part_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_parts(target.parent)
        copy(Path(framework.folder), framework.digest, part)
        publish.publish_directory(part, target)  # another run of the study may have been first
    except OSError as error:
        raise errors.StorageError(
            f"the files of the program {framework.name!r} are kept beside the results, and {error.filename or target} cannot be written: "
            f"{error.strerror}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            publish.remove_tree(part)


def _remove_dead_parts(directory: Path) -> None:
    """Remove what supervisors that were killed have left, by the storage's own clock."""
    now = system.now_at(directory)
    for part in directory.glob(".*.part-*"):
        with contextlib.suppress(OSError):
            if now - part.lstat().st_mtime > DEAD_S:
                publish.remove_tree(part)
