"""Estimate what a cell's dataset and model need: samples and bytes, parameters and memory.

It is read from dataset.json and the manifest where they are there, else computed where possible; nothing is written. GPU hours and times
of runs are estimated here too.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Final

from base import humanize
from base.errors import ConfigError, RecordError, SlipwayError
from containers.engines import in_container
from containers.models import MODELS, Model, build, build_for_tokens, memory, reads_tokens
from data_prep.build.steps import read_dataset_file
from data_prep.file_set import DatasetManifest, files_of, read_any_manifest
from data_prep.hashing import ChunkedFile
from data_prep.manifest import Manifest
from data_prep.sequences.manifest import END_OF_BYTES, SequenceManifest
from data_prep.spec import DatasetSpec
from data_prep.tree.manifest import TreeManifest
from workflow.run.record.reading import record_at
from workflow.study import paths, publishing
from workflow.study.cell import Cell, Run, datasets_of
from workflow.study.site import Site, device_of
from workflow.study.study import Study

CLASSES: Final = {"sklearn-digits": 10}
CHANNELS: Final = {"grey": 1, "rgb": 3}


_Shape = tuple[int, tuple[int, ...], int]
"""The input and output of a network of ours: channels, size and classes of images; or 1, the length of sequences, and the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class DatasetRequirements:
    """One dataset of a study, by its manifest where it is built, else by its specification.

    `root` is where it is published, None until it is built; numbers are None where nothing tells them.
    """

    name: str
    spec: DatasetSpec
    root: Path | None = None
    manifest: DatasetManifest | None = None
    samples: int | None
    bytes: int | None

    @property
    def bytes_are(self) -> str:
        """Return what the bytes are: `built`, `estimated`, or `unknown until built`."""
        return "built" if self.manifest is not None else "unknown until built" if self.bytes is None else "estimated"

    @property
    def files(self) -> Sequence[ChunkedFile] | None:
        """Return the files that are copied to the nodes, once they are known."""
        return None if self.manifest is None else files_of(self.manifest)

    @property
    def checked(self) -> tuple[str | None, str | int | None]:
        """Return `check` and `statistics` as built (a number of samples, or all) or as they will be; None for other things than images."""
        if isinstance(self.manifest, Manifest):
            return self.manifest.check, self.manifest.statistics_samples or "all"
        return self.spec.check, self.spec.statistics

    @property
    def most_train_samples(self) -> int | None:
        """Return a number of samples that the training split does not exceed: all samples, while the dataset is not built.

        For token sequences in buckets it is the number of the largest bucket.
        """
        match self.manifest:
            case SequenceManifest():
                return max(samples for samples, _ in self.manifest.groups("train").values())
            case Manifest():
                return self.manifest.splits["train"].samples if "train" in self.manifest.splits else None
        return self.samples

    @property
    def shape(self) -> _Shape | None:
        """Return what a network of ours is built for, None while that is not known."""
        spec, manifest = self.spec, self.manifest
        if spec.has_sequences:
            known = {"text": END_OF_BYTES + 1 if spec.vocabulary == "bytes" else None, "tokens": spec.vocabulary}[spec.source]
            vocabulary = manifest.vocabulary if isinstance(manifest, SequenceManifest) else known
            return (1, (max(spec.lengths),), vocabulary) if isinstance(vocabulary, int) else None
        channels, size, classes = CHANNELS.get(spec.channels or ""), spec.known_size, spec.classes or CLASSES.get(spec.source)
        if isinstance(manifest, Manifest):
            channels, size, classes = manifest.channels, manifest.size or size, len(manifest.classes)
        return None if channels is None or size is None or classes is None else (channels, size, classes)


def requirements_of(study: Study, name: str) -> DatasetRequirements:
    """Return what is known of the dataset `name` now.

    A torn receipt or manifest counts as not built: the build says what is wrong with it.
    """
    spec, receipt = study.datasets[name], study.build_dir(name) / "dataset.json"
    try:
        root = study.datasets_dir / read_dataset_file(receipt.parent).path if receipt.exists() else None
        manifest = None if root is None else read_any_manifest(root)
    except SlipwayError:
        root = manifest = None
    if manifest is not None:
        samples = None if isinstance(manifest, TreeManifest) else manifest.samples
        return DatasetRequirements(name=name, spec=spec, root=root, manifest=manifest, samples=samples, bytes=manifest.bytes)
    from data_prep.sources import estimated_bytes, known_samples

    samples = known_samples(spec)
    return DatasetRequirements(
        name=name, spec=spec, samples=samples, bytes=_tree_bytes(spec) if spec.is_tree else estimated_bytes(spec, samples)
    )


def _tree_bytes(spec: DatasetSpec) -> int | None:
    """Return the bytes of the tree that is there now; None where it cannot be listed, which its build reports."""
    from data_prep.tree.plan import list_tree

    try:
        return sum(file.bytes for file in list_tree(Path(spec.path or "")).files)
    except SlipwayError:
        return None


def model_of(cell: Cell, needs: DatasetRequirements | None) -> Model | None:
    """Return the cell's network for the samples of its dataset.

    It is None while those are not known, or where only the cell's program knows it.
    """
    shape = _shape_of(cell, needs)
    return None if shape is None else _model(cell.model, *shape)


def memory_of(cell: Cell, needs: DatasetRequirements | None) -> memory.MemoryEstimate | None:
    """Return the least memory that one process of the cell needs on its device; None while the dataset or the network is not known."""
    shape = _shape_of(cell, needs)
    if shape is None:
        return None
    one = _memory_of_one(cell.model, *shape, cell.mode, cell.precision)
    return memory.MemoryEstimate(parameter_bytes=one.parameter_bytes, activation_bytes=one.activation_bytes * cell.batch_size)


def _shape_of(cell: Cell, needs: DatasetRequirements | None) -> _Shape | None:
    if needs is None or cell.model not in MODELS or needs.shape is None or reads_tokens(cell.model) != needs.spec.has_sequences:
        return None
    inputs, size, outputs = needs.shape
    return inputs, size if needs.spec.has_sequences else cell.size_read((size[0], size[1])), outputs


@lru_cache(maxsize=256)
def _model(name: str, channels: int, size: tuple[int, ...], answers: int) -> Model:
    return build_for_tokens(name, answers, size[0]) if len(size) == 1 else build(name, channels, (size[0], size[1]), answers)


@lru_cache(maxsize=1024)
def _memory_of_one(name: str, channels: int, size: tuple[int, ...], answers: int, mode: str, precision: str) -> memory.MemoryEstimate:
    return memory.estimate_memory(_model(name, channels, size, answers).layers, 1, mode=mode, precision=precision)


def images_file(study: Study) -> str | None:
    """Return the path of the file; None where runs are no containers. Raises what a wrong framework raises."""
    site = study.site
    if not in_container(site.engine):
        return None
    from workflow.run.images import file_name, references

    cells = {cell.framework: cell for cell in reversed(study.cells)}
    return str(study.results_dir / file_name(site.engine, references(site, (cells[name] for name in sorted(cells)))))


def is_prepared(study: Study, runs: Iterable[Run]) -> bool:
    """Return True if the datasets of these runs are built and the study's images pinned, so that a job need not do it first."""
    images, names = images_file(study), datasets_of(run.cell for run in runs)
    return (images is None or Path(images).exists()) and all((study.build_dir(name) / "dataset.json").exists() for name in names)


# The most that a study may cost before it is refused: GPU hours = walltime x GPUs x missing runs.


def most_hours_on(device: str, study: Study, runs: Iterable[Run]) -> float:
    """Return the most hours that those of `runs` can take which are on `device`.

    A run holds its GPUs (`cuda`) for its walltime at most, or has its processes on the CPU (`cpu`), against whose hours there is no limit.
    The study's limit is checked against this bound, never against an estimate: the runs cannot exceed it.
    """
    processes = sum(run.cell.world_size for run in runs if device_of(run.cell.device, study.site) == device)
    return study.limits.walltime_s * processes / 3600


def refuse_over_budget(study: Study, missing: Iterable[Run]) -> None:
    """Raise ConfigError when the runs that are still to be made may take more GPU hours than the study allows."""
    runs = list(missing)
    found = most_hours_on("cuda", study, runs)
    most = study.limits.gpu_hours
    if found > most:
        raise ConfigError(
            f"{study.path}: limits.gpu_hours: the {humanize.counted(len(runs), 'missing run')} may take {found:,.1f} GPU hours "
            f"(walltime {humanize.format_duration(study.limits.walltime_s)} x GPUs of each run); valid: at most {most:,g}. "
            f"Raise the limit, exclude cells, or lower limits.walltime{_low_enough(study, found)}"
        )


def _low_enough(study: Study, found: float) -> str:
    minutes = math.floor(study.limits.walltime_s * study.limits.gpu_hours / found / 60)
    return f" to {minutes}m, in which a run that takes longer ends as `timeout`" if minutes else ""


# The times that runs took before, by the records of all studies on this storage.


MAX_PER_CELL: Final = 5
MAX_RECORDS: Final = 2000
"""The limits of the records that are read for an estimate: a plan waits until they are read."""
COMPARABLE: Final = ("framework", "mode", "model", "dataset_spec", "precision", "layout")
"""Runs whose cells agree in these, and which computed on the same kind of device, take times that follow from one another."""


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """One run that ended well, from its start: all of it (`run_s`), and its training alone."""

    cell: Cell
    device: str
    run_s: float
    training_s: float


def past_runs(storage: Path, cells: Collection[Cell]) -> list[PastRun]:
    """Read the records of cells that are among `cells`, or like one of them. Records that cannot be read are skipped."""
    keys_of_cells = list({str(keys): keys for cell in cells if (keys := comparable_keys(cell))}.values())
    found: list[PastRun] = []
    for results in sorted(path.parent for path in (storage / "results").glob(f"*/{paths.STUDY_FILE}")):
        for past in _of_study(results, keys_of_cells):
            found.append(past)
            if len(found) == MAX_RECORDS:
                return found
    return found


def _of_study(results: Path, keys_of_cells: Collection[Mapping[str, object]]) -> Iterator[PastRun]:
    try:
        study = publishing.read_resolved(results)
    except RecordError:
        return
    cells = {cell.cell_id: cell for cell in study.cells if cell.profile is None and comparable_keys(cell) in keys_of_cells}
    read = dict.fromkeys(cells, 0)
    for run in study.runs:
        cell = cells.get(run.cell_id)
        if cell is not None and read[cell.cell_id] < MAX_PER_CELL:
            past = _past(results, run.run_id, cell)
            if past is not None:
                read[cell.cell_id] += 1
                yield past


def _past(results: Path, run_id: str, cell: Cell) -> PastRun | None:
    try:
        record, _ = record_at(paths.record_path(results, run_id), run_id)
    except RecordError:
        return None
    training_s = None if record.training is None else record.training.train_s
    if record.status != "ok" or record.resumed_from is not None or training_s is None:
        return None
    return PastRun(cell=cell, device=record.device, run_s=record.run_s, training_s=training_s)


def comparable_keys(cell: Cell) -> dict[str, object]:
    """Return the keys of a cell that two cells must have in common for their times to be compared: ALIKE."""
    return {key: getattr(cell, key) for key in COMPARABLE}


# The time that runs will take, by what runs took before: an estimate, which no limit is checked against.


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The seconds of one run of a cell, and the cell whose runs they come from: its own, or one of another size."""

    seconds: float
    from_cell: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The time that some runs will take together, and how many of them are known by their own cell, by another one, or not at all."""

    own: int
    scaled: int
    unknown: int
    run_s: float
    gpu_hours: float
    process_hours: float


def estimate_of(cell: Cell, device: str, pasts: Iterable[PastRun]) -> Estimate | None:
    """Estimate a run of the cell by the mean of the cell's own runs, else by the cell that is nearest in size.

    The training time of another cell is scaled by the work.
    """
    fitting = [past for past in pasts if past.device == device and comparable_keys(past.cell) == comparable_keys(cell)]
    own = [past.run_s for past in fitting if past.cell.cell_id == cell.cell_id]
    if own:
        return Estimate(seconds=fmean(own), from_cell=cell.cell_id)
    scalable = [(distance, past) for past in fitting if (distance := _distance(past.cell, cell)) is not None]
    if not scalable:
        return None
    _, nearest = min(scalable, key=lambda pair: (pair[0], pair[1].cell.cell_id))
    same = [past for _, past in scalable if past.cell.cell_id == nearest.cell.cell_id]
    beside, training = fmean(past.run_s - past.training_s for past in same), fmean(past.training_s for past in same)
    return Estimate(seconds=beside + training * _work(cell)[1] / _work(nearest.cell)[1], from_cell=nearest.cell.cell_id)


def forecast_of(runs: Sequence[Run], site: Site, estimates: Mapping[str, Estimate | None]) -> Forecast:
    """Sum the estimates of `runs`; runs without an estimate are counted, and are not in the sums."""
    known = [(run, found) for run in runs if (found := estimates.get(run.cell.cell_id)) is not None]
    hours = {"cuda": 0.0, "cpu": 0.0}
    for run, found in known:
        hours[device_of(run.cell.device, site)] += found.seconds * run.cell.world_size / 3600
    own = sum(found.from_cell == run.cell.cell_id for run, found in known)
    return Forecast(
        own=own,
        scaled=len(known) - own,
        unknown=len(runs) - len(known),
        run_s=sum(found.seconds for _, found in known),
        gpu_hours=hours["cuda"],
        process_hours=hours["cpu"],
    )


def _work(cell: Cell) -> tuple[str, float]:
    """Return the unit and the amount of a cell's work: samples of a process, or, with epochs, parts of the training split."""
    if cell.steps is not None:
        return "samples", float(cell.steps["total"] * cell.batch_size)
    return "epochs", float(cell.epochs or 1) / cell.world_size


def _distance(past: Cell, cell: Cell) -> tuple[float, float] | None:
    """Return how far two cells are apart: in processes, then in work; None where their work cannot be compared."""
    (unit, before), (unit_now, now) = _work(past), _work(cell)
    return None if unit != unit_now else (abs(math.log(past.world_size / cell.world_size)), abs(math.log(before / now)))
