"""Make a study file and a site a Study: checked, expanded, ordered. Everything after it works with these values."""

import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Final, TypeVar

from pydantic import ValidationError

from base.errors import ConfigError
from base.humanize import choices, counted, format_duration
from containers.frameworks import load_framework
from data_prep.spec import DatasetSpec, spec12
from workflow.study import paths, publishing
from workflow.study.cell import NO_DATASET, Cell, Keys, ParametersFile, Run, RunLimits, profile_run
from workflow.study.cell_maker import CellMaker, find_parameters, size_faults
from workflow.study.explain import Fault, fault_error, first_names, validation_error
from workflow.study.loader import Document, read_document
from workflow.study.matrix import excluded, layer_faults, layers_of
from workflow.study.model import CellKeys, StudyFile
from workflow.study.programs import program_faults, program_notes, with_program_files
from workflow.study.series import baseline_of
from workflow.study.site import Notify, Site
from workflow.study.site_file import SiteFile, chosen_site, load_site, site_beside

HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(SiteFile.model_fields.keys() - StudyFile.model_fields.keys(), "it belongs in the site file (--site NAME_OR_PATH)"),
    **dict.fromkeys(CellKeys.model_fields, "a cell's key stands in base (one value), axes or zip (several), or include"),
    "walltime": "write limits: {walltime: 30m}",
}
"""Hints at the right place of keys that stand in the wrong place, or in the wrong file."""


MAX_RUNS: Final = 1_000_000

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits(RunLimits):
    """The limits of what a run may cost, and all missing runs together."""

    gpu_hours: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """A checked study on a site. `runs` is in the order in which they are to start; `notes` are worth a look, and no errors;
    `text` is its file as it was typed."""

    name: str
    path: Path
    site: Site
    datasets: Mapping[str, DatasetSpec]
    """The datasets with absolute paths; cells carry the specification as it is written."""
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    repeats: int
    baseline: Keys
    limits: Limits
    results_dir: Path
    text: str = field(repr=False)
    notes: tuple[str, ...] = ()
    chosen_site: str | None = None
    """The site as it was named by option or variable, a path as it is from every directory; None: the default."""
    target_accuracy: float | None = None
    own_notify: Notify | None = None
    """Whom it tells itself of its end; None: as the site says."""
    site_beside: Path | None = None
    """The site file beside the study, where that is its site since nobody chose one: `chosen_site` names it."""

    def command(self, *words: str) -> str:
        """Return what to type for another command about this study, on the same site."""
        return shlex.join(["slipway", *words, *(() if self.chosen_site is None else ("--site", self.chosen_site))])

    @property
    def notify(self) -> Notify | None:
        """Return who is told of the study's end."""
        return self.own_notify or self.site.notify

    @property
    def site_words(self) -> str:
        """Return the site's name, or the file where that is `site`, which says nothing."""
        return (self.chosen_site or self.site.name) if self.site.name == "site" else self.site.name

    @property
    def datasets_dir(self) -> Path:
        """Return the directory of published datasets on storage."""
        return paths.datasets_dir(self.site.storage)

    @property
    def profiles(self) -> tuple[Cell, ...]:
        """Return the cells of the profile runs."""
        return tuple(run.cell for run in self.runs if run.cell.profile is not None)

    def build_dir(self, dataset: str) -> Path:
        """Return the directory in which the dataset of that name is built."""
        return paths.build_dir(self.site.storage, dataset, spec12(self.datasets[dataset]))

    def record_path(self, run_id: str) -> Path:
        """Return the path of the record that makes a run done."""
        return paths.record_path(self.results_dir, run_id)

    def cell(self, cell_id: str) -> Cell:
        """Return the cell of that id, or the only one that starts with it. Raises ConfigError."""
        return self._named("cell", cell_id, {cell.cell_id: cell for cell in self.cells})

    def run(self, run_id: str) -> Run:
        """Return the run of that id, or the only one that starts with it. Raises ConfigError."""
        return self._named("run", run_id, {run.run_id: run for run in self.runs})

    def _named(self, kind: str, name: str, known: Mapping[str, T]) -> T:
        found = [name] if name in known else [one for one in known if one.startswith(name)]
        if len(found) == 1:
            return known[found[0]]
        if found:
            raise ConfigError(f"{kind} {name!r}: the names of {len(found)} {kind}s begin so: {first_names(found)}")
        raise ConfigError(f"study {self.name!r} has no {kind} {name!r}; {_near(name, list(known))}")


def load_study(path: Path, site: str | None = None, environ: Mapping[str, str] = os.environ, *, profile: bool = False) -> Study:
    """Load the study in the file `path`, on the site named or lying at `site` (None: the site that is chosen otherwise).

    `profile`: with the profile runs, also where the file does not ask for them.

    Without `site` it is $SLIPWAY_SITE, default.yaml, the study's neighbour site.yaml, or local. Raises ConfigError, in which what is
    wrong is said together where one thing does not hide the other.
    """
    document = with_program_files(read_document(Path(path), "study"))
    try:
        keys = StudyFile.model_validate(document.value)
    except ValidationError as error:
        raise validation_error(document, error, StudyFile, HINTS) from error
    beside = site_beside(Path(path), site, environ)
    choice = site if beside is None else str(beside.absolute())
    keys = keys.model_copy(update={"profile": keys.profile or profile})
    folder = publishing.folder_of(Path(os.path.abspath(path)))
    study = _study(document, keys, load_site(choice, environ, folder=folder), chosen_site(choice, environ))
    return study if beside is None else replace(study, site_beside=beside)


def order_runs(name: str, cells: Sequence[Cell], repeats: int) -> tuple[Run, ...]:
    """Order the runs in blocks by repeat, each in an order of its own that the study's name decides.

    So drift of the machine meets all cells alike. The order is by hash, so a new cell finds a place among the others and moves none of
    them.
    """

    def hash_of(cell: Cell, repeat: int) -> bytes:
        return hashlib.sha256(f"{name}/{repeat}/{cell.cell_id}".encode()).digest()

    return tuple(
        Run(cell=cell, repeat=repeat)
        for repeat in range(1, repeats + 1)
        for cell in sorted(cells, key=lambda cell, repeat=repeat: hash_of(cell, repeat))  # type: ignore[misc]
    )


def _study(document: Document, keys: StudyFile, site: Site, chosen: str | None) -> Study:
    folder = Path(os.path.abspath(document.path)).parent
    datasets = {NO_DATASET: DatasetSpec(source=NO_DATASET)} | {name: spec.resolved(folder) for name, spec in keys.datasets.items()}
    results_dir = paths.results_dir(site.storage, keys.study)
    find = partial(find_parameters, folder=folder, storage=site.storage, study=keys.study)
    as_written = {name: spec.as_written() for name, spec in keys.datasets.items()}  # so that a project can be moved and copied
    cells, notes = _cells(document, keys, datasets | as_written, site, find)
    if unused := sorted(keys.programs.keys() - {cell.framework for cell in cells}):
        notes.append(f"no cell uses the program{'s' * (len(unused) > 1)} {', '.join(unused)}")
    notes += program_notes(keys.programs, ((cell.framework, list(cell.args or ())) for cell in cells if cell.program is not None))
    baseline = baseline_of(document, keys, cells)
    limits = Limits(walltime_s=keys.limits.walltime, gpu_hours=keys.limits.gpu_hours, init_s=keys.limits.init)
    repeats = keys.base.repeats
    profiled, told = _profiled(document, cells) if keys.profile else ([], [])
    notes += told
    notes += _check_limits(document, site, limits, cells, repeats)
    if unused := sorted(set(keys.datasets) - {cell.dataset for cell in cells}):
        notes.append(f"no cell uses the dataset{'s' * (len(unused) > 1)} {', '.join(unused)}: nothing builds it")
    try:
        own_notify = None if keys.notify is None else keys.notify.resolved(document.path.absolute().parent)
    except ValueError as error:
        raise fault_error(document, [Fault(place=("notify", "webhook_file"), message=str(error))]) from error
    return Study(
        name=keys.study,
        path=document.path,
        site=site,
        datasets=datasets,
        cells=tuple(cells),
        runs=(*order_runs(keys.study, cells, repeats), *map(profile_run, profiled)),
        repeats=repeats,
        baseline=baseline,
        limits=limits,
        results_dir=results_dir,
        text=document.text,
        notes=tuple(notes),
        chosen_site=chosen,
        target_accuracy=keys.target_accuracy,
        own_notify=own_notify,
    )


def _profiled(document: Document, cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Return the cells that have a profile run, and a note on those that have none. Raises ConfigError where none has one."""
    without: dict[str, list[Cell]] = {}
    for cell in cells:
        if (reason := no_profile(cell)) is not None:
            without.setdefault(reason, []).append(cell)
    notes = [f"profile: {counted(len(of), 'cell has', 'cells have')} none: {reason}" for reason, of in without.items()]
    found = [cell for cell in cells if no_profile(cell) is None]
    if not found:
        message = f"found true, and no cell can have a profile: {'; '.join(without)}; valid: false, or framework pytorch"
        raise fault_error(document, [Fault(place=("profile",), message=message)])
    return found, notes


def no_profile(cell: Cell) -> str | None:
    """Explain why the program of a cell cannot be profiled; None where it can, as far as is known before it runs."""
    if cell.program is not None:
        told = cell.program.get("events") is None
        return None if told else f"program {cell.framework} does not tell of its steps by slipway_events, which profiles them"
    if load_framework(cell.framework).supports.profile:
        return None
    return f"not for framework {PurePath(cell.framework).name}, whose program traces no layers"


def _cells(
    document: Document, keys: StudyFile, datasets: Mapping[str, DatasetSpec], site: Site, find: Callable[[str], ParametersFile]
) -> tuple[list[Cell], list[str]]:
    layers = layers_of(keys)
    faults = layer_faults(layers, datasets, keys.programs)
    if faults:
        raise fault_error(document, faults)
    kept, removed, faults = excluded(layers, keys.exclude)
    if not kept and not faults:
        counted = "; ".join(f"{text!r} removes {count}" for text, count in zip(keys.exclude, removed, strict=True))
        faults = [
            Fault(place=("exclude",), message=f"no cell is left of {layers.num_cells}: {counted}; valid: expressions that leave some")
        ]
    faults += size_faults(datasets, {candidate.keys["dataset"] for candidate in kept})
    folder = Path(os.path.abspath(document.path)).parent
    bare = {candidate.keys["program"] for candidate in kept if datasets[candidate.keys["dataset"]].source == NO_DATASET}
    own = list(program_faults(keys.programs, _arguments(candidate.keys for candidate in kept), bare, folder))
    if own:
        raise fault_error(document, [*faults, *own])
    resolved = {name: program.resolved(name, folder) for name, program in keys.programs.items()}
    maker = CellMaker(layers, datasets, site, resolved, {name: program.supports for name, program in keys.programs.items()}, find)
    cells = [cell for candidate in kept if (cell := maker.make(candidate))]
    faults += maker.faults
    if not faults:
        faults = _duplicates(cells, [candidate.place for candidate in kept])
    if faults:
        raise fault_error(document, faults)
    notes = [f"exclude: {text!r} removes no cell" for text, count in zip(keys.exclude, removed, strict=True) if not count]
    return cells, notes


def _arguments(cells: Iterable[Keys]) -> dict[str, frozenset[str]]:
    """Return for each program the names of the arguments that all its cells have; `cells`: keys of candidates."""
    found: dict[str, frozenset[str]] = {}
    for keys in cells:
        if keys["program"] is not None:
            names = frozenset(keys["args"] or ())
            found[keys["program"]] = found.get(keys["program"], names) & names
    return found


def _duplicates(cells: Sequence[Cell], places: Sequence[tuple[str | int, ...]]) -> list[Fault]:
    first: dict[str, tuple[Cell, tuple[str | int, ...]]] = {}
    faults = []
    for cell, place in zip(cells, places, strict=True):
        other = first.setdefault(cell.cell_id, (cell, place))
        if other[0] is cell:
            continue
        same = f", with the same dataset under the name {other[0].dataset!r}" if other[0].dataset != cell.dataset else ""
        message = f"these keys make the cell {cell.cell_id}, which is in the study already{same}; valid: each cell once"
        faults.append(Fault(place=place, message=message))
    return faults


def _check_limits(document: Document, site: Site, limits: Limits, cells: Sequence[Cell], repeats: int) -> list[str]:
    """Raise ConfigError for limits that cannot be kept; what else is to be said of them."""
    if len(cells) * repeats > MAX_RUNS:
        message = f"found {counted(len(cells), 'cell')} x {counted(repeats, 'repeat')}; valid: at most {MAX_RUNS:,} runs in a study"
        raise fault_error(document, [Fault(place=("base", "repeats"), message=message)])
    if site.walltime_s is None or limits.walltime_s <= site.walltime_s:
        return []
    most, found = format_duration(site.walltime_s), format_duration(limits.walltime_s)
    if without := sorted({cell.framework for cell in cells if not _saves(cell)}):
        message = (
            f"found {found}; valid: at most {most}, the walltime of the site {site.name!r}, "
            f"since framework {', '.join(without)} cannot resume from a checkpoint in another job"
        )
        raise fault_error(document, [Fault(place=("limits", "walltime"), message=message)])
    return [f"a run may take {found}, and a job of the site {site.name!r} {most}: runs are saved before its end, and resume in another job"]


def _saves(cell: Cell) -> bool:
    return bool(load_framework(cell.framework).checkpoint if cell.program is None else cell.program["checkpoint"])


def _near(word: str, valid: Sequence[str]) -> str:
    return choices(word, valid) if len(valid) <= 8 else f"valid: {first_names(valid)} (`slipway plan` lists them)"
