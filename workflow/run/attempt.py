"""All that a run does on network storage. Every function runs in a short-lived child with a time limit, takes and returns plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import LeaseError, UnsupportedRequest
from base.jsonfile import canonical_json
from base.publish import move_directory, part_path, remove_tree
from base.seal import publish_checked, publish_sealed, read_sealed_bytes
from workflow.run import lease as leases
from workflow.run.events import read_events
from workflow.run.machine_load import loads
from workflow.run.ok_check import other_device
from workflow.run.outcome import RESULT
from workflow.run.plan import check_framework
from workflow.run.record import measured
from workflow.run.record_size import fitting
from workflow.run.results import RECORD
from workflow.run.steps_asked import StepsAsked

if TYPE_CHECKING:
    from data_prep.manifest import Manifest


def describe_work(site: Mapping[str, Any], cell: Mapping[str, Any], device: str, images: str | None) -> dict[str, Any]:
    """Framework, dataset, network and pinned image of a cell: {framework, dataset, train_samples, model, image}; the latter None without
    `images`, the file of workflow.run.image. Raises ConfigError, UnsupportedRequest, DatasetError, ContainerError."""
    framework = describe_framework(cell, device)
    check_framework(framework, cell["nodes"] * cell["gpus_per_node"])
    dataset, manifest = describe_dataset(site["storage"], cell)
    return {
        "framework": framework,
        "dataset": dataset,
        "train_samples": manifest.splits["train"].samples if "train" in manifest.splits else 0,
        "model": describe_model(cell["model"], manifest.name, manifest.size, manifest.channels, len(manifest.classes)),
        "image": None if images is None else _pinned(images, site["engine"], cell["framework"]),
    }


def _pinned(images: str, engine: str, framework: str) -> dict[str, Any]:
    from workflow.run.image import read_entry

    return read_entry(images, engine, framework)


def describe_framework(cell: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What of framework.yaml a start needs. A name with a slash is the folder itself."""
    from containers.frameworks import check_supports, load_framework, read_framework

    name = cell["framework"]
    spec = read_framework(Path(name, "framework.yaml")) if "/" in name else load_framework(name)
    check_supports(spec, {**cell, "device": device})
    return {
        "name": spec.name,
        "folder": str(spec.folder),
        "image": spec.image,
        "python": spec.python,
        "launcher": spec.launcher,
        "env": list(spec.env),
        "sidecars": [list(sidecar.command) for sidecar in spec.sidecars],
        "command": list(spec.command),
        "events": spec.events,
        "checkpoint": spec.checkpoint,
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


def make_part(run_dir: str, attempt: int) -> str:
    """A fresh directory beside the attempt's own name, into which the nodes push. Raises OSError."""
    directory = Path(run_dir, "attempts")
    directory.mkdir(parents=True, exist_ok=True)
    part = part_path(directory / str(attempt))
    part.mkdir()
    return str(part)


def read_measured(
    directory: str, cell: Mapping[str, Any], parameters: int, steps: StepsAsked | None, device: str, status: str
) -> dict[str, Any]:
    """What the pushed files say: see record.measured, and machine_load.loads under `loads`. `parameters`: of the cell's model; `steps`:
    what was asked of each rank; `device`: of the allocation; `status`: how the attempt ended. Only of one that ended well there is a rate
    that a busy machine can have moved, and a preempted one has no time to read what was seen on many nodes in a day."""
    world_size = cell["nodes"] * cell["gpus_per_node"]
    events = read_events(Path(directory), world_size)
    found = measured(events, world_size, cell["global_batch_size"], cell["mode"], (cell["model"], parameters), steps)
    return {
        **found,
        "contradiction": found["contradiction"] or other_device(events, device),
        "loads": [[index, load] for index, load in loads(Path(directory), events, cell).items()] if status == "ok" else [],
    }


def publish_attempt(
    run: Mapping[str, Any], part: str, files: Sequence[Mapping[str, Any]], make_record: Callable[[], Mapping[str, Any]]
) -> None:
    """The pushed attempt under its name, then, for a result, the run's record.json, last. Raises PushError, StorageError, LeaseError.

    The record is made here, as late as can be, so that its times are those of its publishing. Who lost the lease meanwhile publishes
    nothing: his attempt is moved aside, for people. May be called again after a failure.
    """
    from data_prep.push import publish_attempt as publish_files

    run_dir, number = Path(run["run_dir"]), run["attempt"]
    target = run_dir / "attempts" / str(number)
    there = Path(part).is_dir()
    record = fitting(make_record())
    if not leases.holds(run_dir, run["token"]):
        aside = target.with_name(f"{number}.lost-{run['token'][:8]}")
        if there:
            publish_sealed(Path(part, RECORD), record)
            move_directory(Path(part), aside)
        raise LeaseError(
            f"{run_dir.name}: attempt {number} lost its lease to another supervisor, so it publishes nothing; it lies in {aside}"
        )
    if there:
        publish_sealed(Path(part, RECORD), record)
        publish_files(Path(part), list(files), target)
    if record["kind"] == RESULT:
        if not leases.holds(run_dir, run["token"]):
            raise LeaseError(
                f"{run_dir.name}: the lease was lost while attempt {number} was published; the run's record is left to its holder"
            )
        publish_checked(run_dir / RECORD, read_sealed_bytes(target / RECORD))
    leases.release(run_dir, run["token"])


def remove_part(part: str) -> None:
    """Take a half-pushed attempt away from storage: the whole of it waits on the nodes."""
    remove_tree(Path(part))


def give_up(run: Mapping[str, Any]) -> None:
    """Give the run back: nothing was made of it."""
    leases.release(Path(run["run_dir"]), run["token"])
