"""Text for people on standard output: lines and tables, safe for a terminal, folded where it is one and never cut."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from base.logs import printable
from base.tabular import tabulated, wrapped


def line(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def aside(text: str) -> None:
    """A line on standard error: what keeps us busy, which is no result."""
    sys.stderr.write(f"slipway: {printable(text)}\n")
    sys.stderr.flush()


def json_value(value: Any) -> None:
    """A JSON document on standard output, for programs."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    if printable(text) != text:  # what a terminal would not show: as an escape it is the same value
        text = json.dumps(value, indent=1, sort_keys=True)
    sys.stdout.write(text + "\n")


def mapping(value: Mapping[str, Any], indent: str = "  ") -> None:
    """Keys and values as in a YAML file: innermost mappings and lists on one line."""
    import yaml

    text = yaml.safe_dump(dict(value), default_flow_style=None, allow_unicode=True, width=10_000)
    for part in text.splitlines():
        line(f"{indent}{part}")


def width() -> int | None:
    """Columns of the terminal; None where standard output is none, and nothing is folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def prose(text: str, indent: str = "") -> None:
    """Sentences, on a terminal folded at blanks, so that no number or path is cut; `indent` stands before the second line and the next."""
    columns = width()
    said = text.lstrip(" ")
    first = text[: len(text) - len(said)]
    for number, part in enumerate([said] if columns is None else wrapped(said, columns - max(len(first), len(indent)))):
        line(f"{indent if number else first}{part}")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under headers, as wide as the terminal. None is shown as `-`."""
    cells = [["-" if value is None else printable(str(value)) for value in row] for row in rows]
    head, lines = tabulated(headers, cells, width())
    for text in head:
        heading(text)
    for text in lines:
        line(text)


def styled(first: str, style: str, rest: str) -> None:
    """A line whose beginning is coloured on a terminal."""
    if not sys.stdout.isatty():
        line(first + rest)
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text.assemble((printable(first), style), printable(rest)))


def heading(text: str) -> None:
    """A line that stands out on a terminal."""
    styled(text, "bold", "")
