"""What a run works with, as storage has it: framework, dataset, network, pinned image. In a short-lived child with a time limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import UnsupportedRequest
from base.jsonfile import canonical_json
from workflow.run.framework import describe_framework
from workflow.run.plan import check_framework

if TYPE_CHECKING:
    from data_prep.manifest import Manifest


def describe_work(site: Mapping[str, Any], cell: Mapping[str, Any], device: str, images: str | None) -> dict[str, Any]:
    """Framework, dataset, network and pinned image of a cell: {framework, dataset, train_samples, model, image}; the latter None without
    `images`, the file of workflow.run.images.pin. Raises ConfigError, UnsupportedRequest, DatasetError, ContainerError."""
    from workflow.run.images.pin import read_entry

    framework = describe_framework(cell, device)
    check_framework(framework, cell["nodes"] * cell["gpus_per_node"])
    dataset, manifest = describe_dataset(site["storage"], cell)
    return {
        "framework": framework,
        "dataset": dataset,
        "train_samples": manifest.splits["train"].samples if "train" in manifest.splits else 0,
        "model": describe_model(cell["model"], manifest.name, manifest.size, manifest.channels, len(manifest.classes)),
        "image": None if images is None else read_entry(images, site["engine"], cell["framework"]),
    }


def build_name(cell: Mapping[str, Any]) -> str:
    """`<name>-<spec12>`: where the cell's dataset is built. The digest of data_prep.spec, without its models: they cost start-up time."""
    from blake3 import blake3

    return f"{cell['dataset']}-{blake3(canonical_json(cell['dataset_spec'])).hexdigest()[:12]}"


def describe_dataset(storage: str, cell: Mapping[str, Any]) -> tuple[dict[str, Any], Manifest]:
    """({name, digest, path, samples, bytes, splits}, the manifest) of the published dataset. Raises DatasetError."""
    from data_prep.build.dataset_file import read_dataset_file
    from data_prep.manifest import read_manifest

    datasets = Path(storage, "datasets")
    built = read_dataset_file(datasets / ".build" / build_name(cell))
    path = datasets / built.path
    found = {"name": built.name, "digest": built.digest, "path": str(path), "samples": built.samples, "bytes": built.bytes}
    manifest = read_manifest(path)
    return {**found, "splits": {name: split.samples for name, split in manifest.splits.items()}}, manifest


def describe_model(name: str, dataset: str, size: tuple[int, int] | None, channels: int, num_classes: int) -> dict[str, Any]:
    """The layer list of the model for this dataset and its images (height, width): {layers, parameters, variant}."""
    from containers.models import build

    if size is None:
        raise UnsupportedRequest(f"the images of dataset {dataset!r} have different sizes; give it a `size` to train on it")
    model = build(name, channels, size, num_classes)
    return {"layers": [dict(layer) for layer in model.layers], "parameters": model.parameters, "variant": model.variant}
