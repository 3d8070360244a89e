"""YAML that others wrote, as plain values: within bounds, and without aliases, since a hundred bytes of them can stand for gigabytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from base.errors import SlipwayError
from base.sanitize import printable

MAX_DEPTH: Final = 32
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(content: bytes, where: Path | str, error: type[SlipwayError]) -> Any:
    """Parse the document in `content`. Raises `error`, which begins with `where`, for what is none, an alias, or more than MAX_DEPTH
    levels.
    """
    try:
        text = content.decode("utf-8-sig")
        problem = _problem(text)
        if problem is None:
            return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as reason:  # ValueError: 2026-99-99 is read as a date
        raise error(f"{where} is not valid YAML: {printable(str(reason))}") from reason
    raise error(f"{where}: {problem}")


def _problem(text: str) -> str | None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            return f"line {_line(event)}: *{event.anchor} stands for another part of the file; write that out"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"line {_line(event)}: nested more than {MAX_DEPTH} deep"
    return None


def _line(event: yaml.Event) -> int | str:
    return "?" if event.start_mark is None else event.start_mark.line + 1
