"""Placeholders in the words of a command: `{python}`, `{data}`, `{args.width}`. Each word is gone through once, so that a value which holds
braces itself is not filled in again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

PLACES: Final = ("python", "folder", "data", "out", "cell")
"""What the engine knows: the interpreter, the program's folder, the staged dataset, the directory to write to, cell.json."""
CELL_PLACES: Final = ("model", "dataset", "mode", "precision", "batch_size", "global_batch_size", "nodes", "gpus_per_node", "seed")
"""Keys of a cell that a command can name."""
NETWORK_PLACES: Final = ("head", "address")
"""The address of the head, and that of the node."""
PORT: Final = "port."
"""`{port.NAME}`: a port of the head, reserved for the run; the same number on all nodes."""
STEPS_PLACE: Final = "steps.total"
"""How many steps a cell asks for, which a command can name too."""
_NAME: Final = re.compile(r"\{([a-z_]+(?:\.[a-z0-9_]+)?)\}")
_LIKE_PORT: Final = re.compile(r"\{port\.[^{}]*\}")


def names_in(word: str) -> list[str]:
    """Return the names of the placeholders in `word`; other braces, as those of JSON, are text."""
    return _NAME.findall(word)


def wrong_ports_in(word: str) -> list[str]:
    """Find what looks like `{port.NAME}` in `word`, and holds no NAME that a port can have: it would stay as it stands."""
    return [found for found in _LIKE_PORT.findall(word) if not _NAME.fullmatch(found)]


def ports_in(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the ports that these words ask for, in order."""
    return tuple(sorted({name.removeprefix(PORT) for word in words for name in names_in(word) if name.startswith(PORT)}))


def fill(word: str, values: Mapping[str, str]) -> str:
    """Return `word` with the placeholders that `values` knows filled in; others stay."""
    return _NAME.sub(lambda match: values.get(match[1], match[0]), word)
