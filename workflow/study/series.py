"""Find the cells that speed-up is relative to, and describe in what cells differ. Pure.

A series is the cells that agree in every key but nodes, gpus_per_node and the batch, and what the baseline names of `optimizer`, `steps`
and `epochs`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, Final, TypeVar

from base.humanize import counted
from workflow.study.cell import NO_EXCHANGE, PROGRAM_PLACES, SIZES, WORDS, Cell, Keys, Run
from workflow.study.explain import Fault, fault_error, first_names
from workflow.study.loader import Document
from workflow.study.model import StudyFile
from workflow.study.site import Site, device_of

# The baseline and its comparable cells. Keys are as in study.json; nested ones are `optimizer.learning_rate`.


NOT_SERIES: Final = ("cell_id", *SIZES)
GOES_ALONG: Final = ("optimizer", "steps", "epochs")
"""The keys that may change with the size, as a learning rate that is scaled with the nodes: a baseline that names one takes it out of
the series."""
SHAPE: Final = ("nodes", "gpus_per_node", "batch_size")
PROGRAM_STARTED: Final = "program_started"
"""The command, the environment and whatever else makes another cell of the same program."""
IMPLIED_BY_FRAMEWORK: Final = ("program", PROGRAM_STARTED)
"""A program is called as its framework."""
PARAMETERS_FILE: Final = "parameters_file"
MAX_LOOKED_AT: Final = 200
T = TypeVar("T")


def flat(keys: Keys) -> dict[str, object]:
    """Return flat keys: `optimizer: {learning_rate: 0.1}` is `optimizer.learning_rate`.

    A program is its name, and how it is started is PROGRAM_STARTED. A file of parameters is its digest.
    """
    found: dict[str, object] = {}
    for key, value in keys.items():
        if key == "program" and isinstance(value, Mapping):
            started = {name: inner for name, inner in value.items() if name not in ("name", *PROGRAM_PLACES)}
            found |= {"program": value["name"], PROGRAM_STARTED: started}
        elif key in (*GOES_ALONG, "args") and isinstance(value, Mapping):
            found |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            found[key] = file_digest(value) if key == PARAMETERS_FILE else value
    return found


def file_digest(file: Any) -> Any:
    """Return what identifies a file of parameters, as a cell has it: the path is no part of what a cell is."""
    return file["blake3"] if isinstance(file, Mapping) and "blake3" in file else file


def redundant_keys(flats: Collection[Keys]) -> set[str]:
    """Return the flat keys that need not be shown beside the others.

    They are what the framework's name tells of a program, that name where it is the model's, as a program's is by default, and the file
    of `parameters` unless two files have one name.
    """
    alike = all(keys.get("framework") == keys.get("model") for keys in flats)
    files = {(keys.get("parameters"), keys.get(PARAMETERS_FILE)) for keys in flats}
    by_name = len(files) == len({name for name, _ in files})
    return {*IMPLIED_BY_FRAMEWORK, *(["framework"] if alike else []), *([PARAMETERS_FILE] if by_name else [])}


def keys_text(baseline: Keys) -> str:
    """Format a baseline for people: `nodes: 1, optimizer.learning_rate: 0.1`."""
    return ", ".join(f"{key}: {value}" for key, value in flat(baseline).items())


def value_at(cell: Cell, path: str) -> Any:
    """Return the value of a key, None where the cell has none."""
    first, _, rest = path.partition(".")
    value = getattr(cell, first, None)
    if path == "program" and isinstance(value, Mapping):
        return value["name"]
    return value.get(rest) if rest and isinstance(value, Mapping) else value


def is_named(cell: Cell, baseline: Keys) -> bool:
    """Return True if the cell has all values that the baseline names, and exchanges gradients: without that it is a diagnosis."""
    return bool(baseline) and cell.comm_hook != NO_EXCHANGE and all(value_at(cell, path) == value for path, value in flat(baseline).items())


def comparable(cell: Cell, baseline: Keys) -> dict[str, object]:
    """Return the keys in which a cell and its baseline must agree."""
    named = {*flat(baseline)}
    if "program" in named:
        named |= {PROGRAM_STARTED, "framework", *(["model"] if cell.model == value_at(cell, "program") else [])}
    found = {key: value for key, value in flat(cell.all_keys()).items() if key not in NOT_SERIES and key not in named}
    if cell.comm_hook == NO_EXCHANGE:
        found["comm_hook"] = NO_EXCHANGE  # also where the baseline names the key: no speed-up is made of a diagnosis
    return {**found, "unit": cell.unit} if "program" in named else found  # samples/s of one are never compared with tokens/s of another


def baselines(members: Sequence[T], baseline: Keys, cell_of: Callable[[T], Cell]) -> tuple[T, ...]:
    """Return the cells that speed-up is relative to, of cells that agree in what is comparable.

    They have what the baseline names. Where all cells have it, they are the smallest of them, since a study in which every cell is a
    baseline compares nothing.
    """
    named = tuple(member for member in members if is_named(cell_of(member), baseline))
    if len(named) < len(members):
        return named
    fewest = min((cell_of(member).world_size for member in named), default=0)
    return tuple(member for member in named if cell_of(member).world_size == fewest)


def joined_series(cells: Sequence[Cell], baseline: Keys) -> list[str | None]:
    """Name for each cell the series that it makes with others which differ only in what the baseline names and goes along with the size.

    The name is None where the baseline names no such key, or where two cells of one size would meet.
    """
    along = [path for path in flat(baseline) if path.split(".")[0] in GOES_ALONG]
    if not along:
        return [None] * len(cells)
    texts = [
        json.dumps({key: value for key, value in flat(cell.to_json()).items() if key not in (*NOT_SERIES, *along)}, sort_keys=True)
        for cell in cells
    ]
    met: defaultdict[str, list[Any]] = defaultdict(list)
    for text, cell in zip(texts, cells, strict=True):
        met[text].append([getattr(cell, name) for name in SHAPE])
    unique = {text for text, shapes in met.items() if len({json.dumps(shape) for shape in shapes}) == len(shapes)}
    return [text if text in unique else None for text in texts]


def baseline_mismatch(cell: Cell, all_cells: Iterable[Cell], baseline: Keys) -> str:
    """Name the keys that keep the nearest baseline cell from being compared with the cell; empty where there is no baseline cell."""
    if cell.comm_hook == NO_EXCHANGE:
        return "gradients are not exchanged (comm_hook: noop): a diagnosis, without speed-up"
    own = comparable(cell, baseline)
    others = [comparable(other, baseline) for other in islice((one for one in all_cells if is_named(one, baseline)), MAX_LOOKED_AT)]
    apart = [{name: other.get(name) for name in sorted(own.keys() | other.keys()) if own.get(name) != other.get(name)} for other in others]
    least = min((found for found in apart if found), key=len, default=None)
    if least is None:
        return ""
    differs = ", ".join(name + _both(value, own.get(name)) for name, value in least.items())
    along = ", ".join(name for name in least if name.split(".")[0] in GOES_ALONG)
    return f"the nearest one differs in {differs}" + (
        f"; name {along} in the baseline, and they are compared all the same" if along else ""
    )


def _both(there: Any, here: Any) -> str:
    return "" if isinstance(there, Mapping | list) or isinstance(here, Mapping | list) else f" ({there} there, {here} here)"


def without_baseline(cells: Sequence[Cell], baseline: Keys) -> Mapping[str, int]:
    """Count the cells that no baseline cell is compared with, so that their speed-up is null, by what they have not."""
    specs: dict[int, str] = {}
    families: defaultdict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        families[_key(cell, baseline, specs)].append(cell)
    named = list({_key(cell, {}, specs): cell for cell in cells if is_named(cell, baseline)}.values())
    found: Counter[str] = Counter()
    for family in families.values():
        sizes = {size for base in baselines(family, baseline, lambda cell: cell) for size in _batches(base)}
        if not sizes:
            why = baseline_mismatch(family[0], named, baseline)
            found[f"no baseline cell{why and f' ({why})'}"] += len(family)
        elif not baseline.keys() & {"batch_size", "global_batch_size"}:  # which a baseline that names one leaves open
            found["neither the batch nor the global batch of a baseline cell"] += sum(sizes.isdisjoint(_batches(cell)) for cell in family)
    return +found


def _batches(cell: Cell) -> tuple[tuple[str, int], ...]:
    return ("batch_size", cell.batch_size), ("global_batch_size", cell.global_batch_size)


def _key(cell: Cell, baseline: Keys, specs: dict[int, str]) -> str:
    """Return the keys in which cells must agree, as text; a specification is shared by many cells and written once."""
    text = specs.setdefault(id(cell.dataset_spec), json.dumps(cell.dataset_spec, sort_keys=True))
    rest = {key: value for key, value in comparable(cell, baseline).items() if key != "dataset_spec"}
    return json.dumps([rest, text], sort_keys=True)


# The choice of the baseline.


def baseline_of(document: Document, keys: StudyFile, cells: Sequence[Cell]) -> dict[str, object]:
    """Return the baseline's keys and values.

    They are those of the file, else the fewest nodes, and the fewest GPUs with them where they differ.
    """
    if "baseline" not in keys.model_fields_set:
        nodes, gpus = min((cell.nodes, cell.gpus_per_node) for cell in cells)
        return {"nodes": nodes} if all(cell.gpus_per_node == gpus for cell in cells) else {"nodes": nodes, "gpus_per_node": gpus}
    given: dict[str, object] = keys.baseline.model_dump(exclude_unset=True)
    if not flat(given):
        raise fault_error(document, [Fault(place=("baseline",), message="found no key; valid: keys with one value, such as nodes: 1")])
    if not any(is_named(cell, given) for cell in cells):
        raise fault_error(document, [_no_baseline(given, cells)])
    return given


def _no_baseline(given: Keys, cells: Sequence[Cell]) -> Fault:
    named = flat(given)
    have = {key: sorted({str(value_at(cell, key)) for cell in cells}, key=lambda text: (len(text), text)) for key in named}
    for key, value in named.items():
        if str(value) not in have[key]:
            return Fault(
                place=("baseline", *key.split(".")),
                message=f"found {value}, and no cell has it: no speed-up could be computed; valid: {first_names(have[key])}",
            )
    keys = keys_text(given)
    return Fault(
        place=("baseline",), message=f"no cell has {{{keys}}} together: no speed-up could be computed; valid: values that meet in a cell"
    )


# Describe a cell for people who look at a study while it runs: `resnet18, batch 32, 2 nodes, repeat 1`. Pure.


_DESCRIBED_ELSEWHERE: Final = ("cell_id", "model", "batch_size", "global_batch_size", "nodes", "gpus_per_node", "dataset_spec")
"""Keys that have words of their own, or another key that tells them."""
_NAMED: Final = ("comm_hook", "augmentation")
"""Words that do not speak for themselves."""


def words_of(cells: Iterable[Cell], site: Site, repeats: int) -> Callable[[Run], str]:
    """Return a function that tells a run from the others of its study: model, batch, size, and every other key that differs in `cells`."""
    flats = {cell.cell_id: flat(cell.all_keys()) for cell in cells}
    names = _differing(flats.values())

    def words(run: Run) -> str:
        cell, keys = run.cell, flats[run.cell.measured_id]
        values = [_value(name, keys.get(name)) for name in names]
        repeat = ["profile"] if cell.profile is not None else [f"repeat {run.repeat}"] if repeats > 1 else []
        return ", ".join([cell.model, *values, f"batch {cell.batch_size}", _size(cell, site), *repeat])

    return words


def keys_not_in_ids(cells: Iterable[Cell]) -> Mapping[str, str]:
    """Return by cell id the keys that the id has as digits only: `strategy fsdp2, seed 1`.

    It is empty where ids tell all: they are names of results, and stay what they are when a key is added.
    """
    flats = {cell.cell_id: flat(cell.all_keys()) for cell in cells}
    names = [name for name in _differing(flats.values()) if name not in WORDS or name == "dataset"]
    return {cell_id: ", ".join(_value(name, keys.get(name)) for name in names) for cell_id, keys in flats.items()} if names else {}


def _differing(flats: Collection[Keys]) -> list[str]:
    """Return the keys with more than one value, except those that are described elsewhere."""
    described = {*_DESCRIBED_ELSEWHERE, *redundant_keys(flats)}
    names = dict.fromkeys(name for keys in flats for name in keys)
    return [name for name in names if name not in described and len({repr(keys.get(name)) for keys in flats}) > 1]


def stage_words(cell: Cell) -> str:
    """Describe what a run stages, and where to: `photos -> local disks of 2 nodes`."""
    if not cell.has_dataset:
        return "nothing"
    return f"{cell.dataset} -> local disk{'' if cell.nodes == 1 else 's'} of {counted(cell.nodes, 'node')}"


def train_words(cell: Cell, site: Site) -> str:
    """Describe what a run starts, and on what: `train with docker pytorch on 2 x 8 GPUs`."""
    unit, units = ("GPU", "GPUs") if device_of(cell.device, site) == "cuda" else ("process", "processes")
    return f"{cell.mode} with {site.engine} {PurePath(cell.framework).name} on {cell.nodes} x {counted(cell.gpus_per_node, unit, units)}"


def _size(cell: Cell, site: Site) -> str:
    unit = "GPU" if device_of(cell.device, site) == "cuda" else "process"
    each = (
        ""
        if cell.gpus_per_node == 1 and unit == "process"
        else f" x {counted(cell.gpus_per_node, unit, 'GPUs' if unit == 'GPU' else 'processes')}"
    )
    return f"{counted(cell.nodes, 'node')}{each}"


def _value(name: str, value: Any) -> str:
    return str(value) if name in WORDS and name not in _NAMED else f"{name.rpartition('.')[2].replace('_', ' ')} {value}"
