"""What a baseline names, and which cells it makes comparable: for the cells of a study and those of its tables alike. Pure.

Keys are given as in study.json; nested ones are called `optimizer.learning_rate`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from workflow.study.cell import PROGRAM_PLACES, SIZES, unit_of

NOT_SERIES: Final = ("cell_id", *SIZES)
GOES_ALONG: Final = ("optimizer", "steps", "epochs")
"""What may change with the size, as a learning rate that is scaled with the nodes: a baseline that names it takes it out of the series."""
SHAPE: Final = ("nodes", "gpus_per_node", "batch_size")
PROGRAM_STARTED: Final = "program_started"
"""The command, the environment and whatever else makes another cell of the same program."""
TOLD_BY_FRAMEWORK: Final = ("program", PROGRAM_STARTED)
"""A program is called as its framework."""
PARAMETERS_FILE: Final = "parameters_file"
MOST_LOOKED_AT: Final = 200
T = TypeVar("T")
Keys = Mapping[str, Any]


def flat(keys: Keys) -> dict[str, Any]:
    """One level: `optimizer: {learning_rate: 0.1}` is `optimizer.learning_rate`. A program is its name, and how it is started is
    PROGRAM_STARTED. A file of parameters is its digest."""
    found: dict[str, Any] = {}
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


def tells_nothing(flats: Sequence[Keys]) -> set[str]:
    """Of flat keys those that need not be shown beside the others: what the framework's name tells of a program, that name where it is
    the model's, as a program's is by default, and the file of `parameters` unless two files have one name."""
    alike = all(keys.get("framework") == keys.get("model") for keys in flats)
    files = {(keys.get("parameters"), keys.get(PARAMETERS_FILE)) for keys in flats}
    by_name = len(files) == len({name for name, _ in files})
    return {*TOLD_BY_FRAMEWORK, *(["framework"] if alike else []), *([PARAMETERS_FILE] if by_name else [])}


def in_words(baseline: Keys) -> str:
    """`nodes: 1, optimizer.learning_rate: 0.1`."""
    return ", ".join(f"{key}: {value}" for key, value in flat(baseline).items())


def value_at(keys: Keys, path: str) -> Any:
    """The value of a key, None where the cell has none."""
    first, _, rest = path.partition(".")
    value = keys.get(first)
    if path == "program" and isinstance(value, Mapping):
        return value["name"]
    return value.get(rest) if rest and isinstance(value, Mapping) else value


def is_named(keys: Keys, baseline: Keys) -> bool:
    """Whether the cell of these keys has all values that the baseline names."""
    return bool(baseline) and all(value_at(keys, path) == value for path, value in flat(baseline).items())


def comparable(keys: Keys, baseline: Keys) -> dict[str, Any]:
    """The keys in which a cell and its baseline must agree."""
    named = {*flat(baseline)}
    if "program" in named:
        named |= {PROGRAM_STARTED, "framework", *(["model"] if keys["model"] == value_at(keys, "program") else [])}
    found = {key: value for key, value in flat(keys).items() if key not in NOT_SERIES and key not in named}
    return {**found, "unit": unit_of(keys)} if "program" in named else found  # samples/s of one are never compared with tokens/s of another


def baselines(members: Sequence[T], baseline: Keys, keys: Callable[[T], Keys]) -> tuple[T, ...]:
    """Of cells that agree in what is comparable, those that speed-up is relative to: which have what the baseline names; the smallest of
    them where all have, since a study in which every cell is a baseline compares nothing."""
    named = tuple(member for member in members if is_named(keys(member), baseline))
    if len(named) < len(members):
        return named
    fewest = min((processes(keys(member)) for member in named), default=0)
    return tuple(member for member in named if processes(keys(member)) == fewest)


def processes(keys: Keys) -> int:
    """Of a cell."""
    return int(keys["nodes"] * keys["gpus_per_node"])


def joined_series(cells: Sequence[Keys], baseline: Keys) -> list[str | None]:
    """For each cell the name of the series that it makes with others which differ only in what goes along with the size and is named by
    the baseline; None where nothing is named so, or where two cells of one size would meet."""
    along = [path for path in flat(baseline) if path.split(".")[0] in GOES_ALONG]
    if not along:
        return [None] * len(cells)
    texts = [
        json.dumps({key: value for key, value in flat(keys).items() if key not in (*NOT_SERIES, *along)}, sort_keys=True) for keys in cells
    ]
    met: defaultdict[str, list[Any]] = defaultdict(list)
    for text, keys in zip(texts, cells, strict=True):
        met[text].append([keys[name] for name in SHAPE])
    unique = {text for text, shapes in met.items() if len({json.dumps(shape) for shape in shapes}) == len(shapes)}
    return [text if text in unique else None for text in texts]


def obstacle(keys: Keys, all_cells: Iterable[Keys], baseline: Keys) -> str:
    """In words, which keys keep the nearest baseline cell from being compared with the cell; empty where there is no baseline cell."""
    own = comparable(keys, baseline)
    others = [comparable(other, baseline) for other in islice((keys for keys in all_cells if is_named(keys, baseline)), MOST_LOOKED_AT)]
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
