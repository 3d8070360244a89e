"""Text for people on standard output: lines and tables, safe for a terminal, never cut when they are not on one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from base.logs import printable


def line(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def json_value(value: Any) -> None:
    """A JSON document on standard output, for programs."""
    sys.stdout.write(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def mapping(value: Mapping[str, Any], indent: str = "  ") -> None:
    """Keys and values as in a YAML file: innermost mappings and lists on one line."""
    import yaml

    text = yaml.safe_dump(dict(value), default_flow_style=None, allow_unicode=True, width=10_000)
    for part in text.splitlines():
        line(f"{indent}{part}")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns under headers: a rich table on a terminal, plain aligned text elsewhere. None is shown as `-`."""
    cells = [["-" if value is None else printable(str(value)) for value in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(headers, cells)
        return
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    for row in [headers, *cells]:
        sys.stdout.write("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _rich_table(headers: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        shown.add_column(header, overflow="fold", no_wrap=number == 0)
    for row in cells:
        shown.add_row(*map(Text, row))
    Console().print(shown)


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
