"""What a run works with, as storage has it: framework, dataset, network, pinned image. In a short-lived child with a time limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from base.errors import UnsupportedRequest
from base.jsonfile import canonical_json
from containers.models import Model, build
from workflow.run.framework import describe_framework
from workflow.run.plan import Framework, check_framework

if TYPE_CHECKING:
    from data_prep.manifest import Manifest


class PublishedDataset(Struct, frozen=True, kw_only=True):
    """A dataset as it lies on storage."""

    name: str
    digest: str
    path: str
    samples: int
    bytes: int
    splits: dict[str, int]
    """Samples of each."""


class Work(Struct, frozen=True, kw_only=True):
    """What a run works with."""

    framework: Framework
    dataset: PublishedDataset
    train_samples: int
    model: Model
    image: dict[str, Any] | None
    """As workflow/run/images/pin.py has it; None where runs are no containers."""


def describe_work(site: Mapping[str, Any], cell: Mapping[str, Any], device: str, images: str | None) -> dict[str, Any]:
    """The Work of a cell, as JSON can carry it: `read_work` is the inverse. `images`: the file of workflow.run.images.pin. Raises
    ConfigError, UnsupportedRequest, DatasetError, ContainerError."""
    from workflow.run.images.pin import read_entry

    framework = describe_framework(cell, device)
    check_framework(framework, cell["nodes"] * cell["gpus_per_node"])
    dataset, manifest = describe_dataset(site["storage"], cell)
    work = Work(
        framework=framework,
        dataset=dataset,
        train_samples=manifest.splits["train"].samples if "train" in manifest.splits else 0,
        model=describe_model(cell["model"], manifest.name, manifest.size, manifest.channels, len(manifest.classes)),
        image=None if images is None else read_entry(images, site["engine"], cell["framework"]),
    )
    plain: dict[str, Any] = msgspec.to_builtins(work)
    return plain


def read_work(said: dict[str, Any]) -> Work:
    """What `describe_work` has said, in its child."""
    return msgspec.convert(said, Work)


def build_name(cell: Mapping[str, Any]) -> str:
    """`<name>-<spec12>`: where the cell's dataset is built. The digest of data_prep.spec, without its models: they cost start-up time."""
    from blake3 import blake3

    return f"{cell['dataset']}-{blake3(canonical_json(cell['dataset_spec'])).hexdigest()[:12]}"


def describe_dataset(storage: str, cell: Mapping[str, Any]) -> tuple[PublishedDataset, Manifest]:
    """The published dataset and its manifest. Raises DatasetError."""
    from data_prep.build.dataset_file import read_dataset_file
    from data_prep.manifest import read_manifest

    datasets = Path(storage, "datasets")
    built = read_dataset_file(datasets / ".build" / build_name(cell))
    path = datasets / built.path
    manifest = read_manifest(path)
    splits = {name: split.samples for name, split in manifest.splits.items()}
    found = PublishedDataset(name=built.name, digest=built.digest, path=str(path), samples=built.samples, bytes=built.bytes, splits=splits)
    return found, manifest


def describe_model(name: str, dataset: str, size: tuple[int, int] | None, channels: int, num_classes: int) -> Model:
    """The model for this dataset and its images (height, width)."""
    if size is None:
        raise UnsupportedRequest(f"the images of dataset {dataset!r} have different sizes; give it a `size` to train on it")
    return build(name, channels, size, num_classes)
