"""Define what travels from the study to the record: cells, runs and their limits."""

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from msgspec import Meta

from base import humanize, jsonfile
from base.typed import Check, Count, Digest, FromOne, Name, PathText, ReadableAs, Seconds, SomeSeconds, between, read_as
from containers import rank_variables, step_lines

ID_HASH_LENGTH: Final = 10
SEED: Final = "seed"
"""The value of the key `parameters` where a run starts from numbers that its seed decides."""
NO_DATASET: Final = "none"
"""The name and the source of the dataset of a cell that stages none."""
OF_TOKENS: Final = ("text", "tokens")
"""The sources of token sequences: data_prep.spec.SEQUENCE_KINDS, without what that imports."""
TREE_FOLDER: Final = "files"
"""data_prep.tree.manifest.FOLDER, without what that imports."""
Device = Literal["site", "cpu", "cuda"]
Mode = Literal["train", "infer"]
Nodes = Annotated[int, between(1, 100_000), Meta(ge=1, le=100_000)]
PerNode = Annotated[int, between(1, 4096), Meta(ge=1, le=4096)]
Word = Annotated[str, Meta(max_length=4096)]
"""Whoever reads cells of other accounts by msgspec, as the record's reader does, is held to what Meta says."""


class MountWords(TypedDict):
    """A mount of a program, as a cell has it."""

    source: PathText
    target: PathText
    writable: bool


class SidecarWords(TypedDict):
    """A sidecar of a program, as a cell has it."""

    name: Name
    where: Literal["head", "each"]
    command: Annotated[tuple[str, ...], Check("a command of one word or more", bool)]
    env: dict[str, str]
    ends: rank_variables.SidecarEnds


class ParametersFile(TypedDict):
    """A file of parameters that a cell starts from."""

    path: PathText
    bytes: Count
    blake3: Digest


Keys = Mapping[str, Any]
"""Keys of a cell, or of a dataset, and their values, as a study has them."""


class ProfileWords(TypedDict):
    """What a profile run is a profile of, as its cell has it."""

    of: Name
    """The id of the measured cell."""
    logged: FromOne
    """The last steps of the warm-up, in which DistributedDataParallel keeps its log of the exchange of gradients."""


class ProgramWords(TypedDict):
    """A program of the study, as a cell has it: absolute paths, and all keys that have a default."""

    name: Name
    command: Annotated[tuple[str, ...], Check("a command of one word or more", bool)]
    launcher: rank_variables.Launcher
    python: str
    env: dict[str, str]
    mounts: tuple[MountWords, ...]
    version: FromOne
    checkpoint: bool
    events: NotRequired[Literal["none"] | Annotated[dict[str, Any], ReadableAs(step_lines.LogEvents)]]
    folder: NotRequired[PathText]
    image: NotRequired[str]
    unit: NotRequired[Literal["samples", "tokens"]]
    packages: NotRequired[tuple[str, ...]]
    env_from: NotRequired[tuple[rank_variables.Rendering, ...]]
    sidecars: NotRequired[tuple[SidecarWords, ...]]
    network: NotRequired[Literal["host", "none"]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A point of the matrix, every key resolved. `device` may be `site` and `threads` may be `auto`: the allocation decides them.

    `batch_size` is per process (per GPU; per process on the CPU); `dataset` is the study's own name of it and `dataset_spec` all it says,
    with defaults, and relative paths as they are written. Exactly one of `steps` {warmup, measured, total} and `epochs` is not None.
    """

    cell_id: Name
    framework: PathText
    mode: Mode
    model: Word
    dataset: Name
    dataset_spec: Keys
    batch_size: FromOne
    global_batch_size: FromOne
    nodes: Nodes
    gpus_per_node: PerNode
    precision: Word
    layout: Word
    comm_hook: Word
    device: Device
    threads: PerNode | Literal["auto"]
    seed: Annotated[int, Meta(ge=0, le=jsonfile.MAX_INTEGER)]
    optimizer: Keys
    steps: Mapping[str, Count] | None
    epochs: FromOne | None
    save_parameters: bool
    strategy: str = "ddp"
    backend: str = "auto"
    augmentation: Word = "none"
    crop_size: FromOne | None = None
    """The side of the square that is read of each image. None: whole images."""
    dropout: bool = True
    """false: the network is trained without its dropout layers."""
    reader: str = "slipway"
    """native: the framework reads what it trains on by itself, in an order of its own; memory: each rank keeps its first batch."""
    bucket_cap_mb: FromOne | None = None
    """MB of gradients that are exchanged at once. None: as many as the framework does by itself."""
    conv_algorithm: Word = "auto"
    """How the algorithms of convolutions are chosen: auto (as the framework does), heuristic, measured, deterministic."""
    input_gradient: bool = False
    """true: the gradient of the images is computed too, which training does not need."""
    evaluate_every: FromOne | None = None
    """Epochs from one evaluation to the next. None: only at the end."""
    parameters: str = SEED
    """The parameters that a run starts from, as the study has them: the seed, a file, or a run that has trained them."""
    parameters_file: Annotated[Mapping[str, Any], ReadableAs(ParametersFile)] | None = None
    """The file of these parameters when the study was read; its digest identifies the cell. None: the seed."""
    program: Annotated[Mapping[str, Any], ReadableAs(ProgramWords)] | None = None
    """All that the study says of the cell's own program, with its name, defaults and absolute paths; None: `framework` is Slipway's."""
    args: Mapping[str, bool | int | float | str] | None = None
    """The arguments of a program."""
    profile: Annotated[Mapping[str, Any], ReadableAs(ProfileWords)] | None = None
    """The measured cell, of a profile run alone. Its own measured steps are traced, so that they are slower, and give no rate."""

    @property
    def measured_id(self) -> str:
        """Return the id of the cell that gives rates: of a profile that of the cell which it is of."""
        return self.cell_id if self.profile is None else str(self.profile["of"])

    @property
    def has_dataset(self) -> bool:
        """Return True if a dataset is built and staged for the cell."""
        return self.dataset_spec.get("source") != NO_DATASET

    @property
    def data_folder(self) -> str:
        """Return the folder of the data below the staged dataset.

        A tree of files has one, beside which its manifest lies; it is empty for other datasets.
        """
        return TREE_FOLDER if self.dataset_spec.get("source") == "files" else ""

    def size_read(self, stored: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the images that the network sees, of a dataset with images of size `stored`."""
        return stored if self.crop_size is None else (self.crop_size, self.crop_size)

    @property
    def world_size(self) -> int:
        """Return the number of processes in all: nodes x gpus_per_node."""
        return self.nodes * self.gpus_per_node

    @property
    def unit(self) -> str:
        """Return what the rate of the cell counts: `samples` or `tokens`."""
        return unit_of({"program": self.program, "dataset_spec": self.dataset_spec})

    def all_keys(self) -> dict[str, object]:
        """Return the cell as values under the study's own names, to tell it from others.

        Keys of OPTIONAL are there only where the cell has one.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None or name not in OPTIONAL}

    def to_json(self) -> dict[str, Any]:
        """Return the cell as JSON-able values, as it is written: without the keys of LEFT_OUT that have their default."""
        return {name: value for name, value in self.all_keys().items() if name not in LEFT_OUT or value != LEFT_OUT[name]}

    @classmethod
    def from_json(cls, value: Keys) -> "Cell":
        """Read the cell in `value`; keys of others beside it are left alone. Raises RecordError for a missing or a wrong key."""
        return read_as(cls, dict(value), "a cell", advice="it was written by another version of Slipway, or edited")


UNITS: Final = ("samples", "tokens")
"""The units that a rate counts; the first one where a cell names none."""


def unit_of(keys: Keys) -> str:
    """Return what the rate of a cell with these keys counts: `samples` or `tokens`. For a program the study says it."""
    program = keys.get("program")
    if program is not None:
        return str(program.get("unit", UNITS[0]))
    return UNITS[(keys.get("dataset_spec") or {}).get("source") in OF_TOKENS]


NO_EXCHANGE: Final = "noop"
"""The `comm_hook` by which ranks keep their own gradients: such a cell is a diagnosis, and no result."""
ARGS: Final = "args."
"""Beginning of the name of an argument, where it stands beside other keys."""
OF_PROGRAMS: Final = ("program", "args")
OPTIONAL: Final = (*OF_PROGRAMS, "parameters_file", "profile", "bucket_cap_mb", "crop_size", "evaluate_every")
LEFT_OUT: Final[Keys] = {"conv_algorithm": "auto", "input_gradient": False}
"""Keys that are written only where a cell has another value, so that a study without them has the files that earlier versions wrote."""
PROGRAM_PLACES: Final = ("folder", "image", "python", "packages", "mounts", "checkpoint")
"""The keys of a program that are no part of a cell's identity, as the path of a framework's folder is none: where it and what it reads
are, and what its interpreter has."""
WORDS: Final = ("model", "framework", "dataset", "mode", "precision", "layout", "comm_hook", "augmentation", "device")
"""Keys whose value is a word: columns of the tables and parts of a series' name, in this order."""
SIZES: Final = ("batch_size", "global_batch_size", "nodes", "gpus_per_node")
"""Keys that grow along a series: columns of the tables, too."""
_IN_ID: Final = tuple(field.name for field in dataclasses.fields(Cell) if field.name in WORDS and field.name not in ("model", "dataset"))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One repeat of a cell; repeats count from 1."""

    cell: Cell
    repeat: int

    @property
    def run_id(self) -> str:
        """Return `<cell_id>-r<repeat>`, the name of the run's directory, and the only wildcard of its rule."""
        return f"{self.cell.cell_id}-r{self.repeat}"


PROFILE_WARMUP: Final = 5
PROFILE_LOGGED: Final = 10
PROFILED: Final = 5
"""The steps of a profile run: first as many that nobody looks at, then with the log of the exchange, at last with the trace, whose size
grows with them."""


def profile_of(cell: Cell) -> Cell:
    """Return the cell of the profile of `cell`: the same work in few steps, under an id of its own."""
    warmup = PROFILE_WARMUP + PROFILE_LOGGED
    return dataclasses.replace(
        cell,
        cell_id=f"{cell.cell_id}-profile",
        steps={"warmup": warmup, "measured": PROFILED, "total": warmup + PROFILED},
        epochs=None,
        save_parameters=False,
        evaluate_every=None,
        profile={"of": cell.cell_id, "logged": PROFILE_LOGGED},
    )


def profile_run(cell: Cell) -> Run:
    """Return the profile run of a measured cell, the only one."""
    return Run(cell=profile_of(cell), repeat=1)


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """How long a run may take, over all its attempts, and how long a rank may be silent where it does not train."""

    walltime_s: SomeSeconds = 1800.0
    init_s: Seconds = 600.0


def cell_id(keys: Keys, dataset: Keys) -> str:
    """Return the id of a cell: a short readable slug and 10 hex digits of the SHA-256 of what identifies the cell.

    8 digits would meet twice in 10^4 cells of one slug with probability 0.01.

    `keys`: the cell's keys that differ from the study schema's defaults, batch as `batch_size` per process, dataset left out; `dataset`:
    the keys of its specification that differ from theirs. Neither the study's name nor its name of the dataset is in it.
    """
    digest = hashlib.sha256(jsonfile.canonical_json({**keys, "dataset": dataset})).hexdigest()[:ID_HASH_LENGTH]
    place = str(dataset.get("path") or dataset["source"])
    words = [
        keys["model"],
        PurePath(place).name.split(".")[0].removeprefix("sklearn-"),
        f"b{keys['batch_size']}",
        f"n{keys.get('nodes', 1)}",
        f"g{keys.get('gpus_per_node', 1)}",
        *(keys[key] for key in _IN_ID if key in keys),
    ]
    return f"{humanize.slug(*words)}-{digest}"


def datasets_of(cells: Iterable[Cell]) -> list[str]:
    """Return the names of the datasets that are built and staged for the cells, in order."""
    return sorted({cell.dataset for cell in cells if cell.has_dataset})


def plain_text(value: object) -> str:
    """Format an argument for a command or a variable: `true` and `false`, numbers as Python and JSON write them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Divide the nodes of a job into sets for `slipway submit --spread`, so that repeats have nodes of their own. Pure.
#
# Runs of a cell go through the sets. What nodes have in common with themselves, a slow link or a warm chip, is the same in all repeats on
# them: an interval over such repeats says nothing about other nodes.


SETS: Final = "SLIPWAY_NODE_SETS"
"""Environment variable of the job: into how many equal sets its nodes are divided, in the order of its node list."""


def node_sets(cells: Iterable[str], sets: int) -> list[int]:
    """Return for each run of a study the set that it takes, 0 to `sets` - 1.

    `cells`: the cell of each run, in the study's order. A cell takes the set that it has used least, so that as many repeats as there
    are sets are on different nodes; of several the one whose turn it is, so that runs next to each other can go side by side.
    """
    used: dict[str, Counter[int]] = defaultdict(Counter)
    found = []
    for place, cell in enumerate(cells):
        chosen = min(range(sets), key=lambda one: (used[cell][one], (one - place) % sets))
        used[cell][chosen] += 1
        found.append(chosen)
    return found
