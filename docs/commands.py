"""Make the section of each command from its docstring and the help of its options, and the table of make's targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from docs.markdown import code, table, wrapped
from workflow.commands.main import parser

COMMON: Final = ("--study", "--site", "--json")
"""Options that the page explains once for all commands."""
MAKEFILE: Final = Path(__file__).parents[1] / "Makefile"


@cache
def commands() -> dict[str, Any]:
    """Return every command that users type, by its words, such as `dataset build`."""
    return dict(_inside("", parser()))


def inner_commands(command: Any) -> dict[str, Any]:
    """Return the commands of a group that users type, by name; none of a command that is no group."""
    inner: dict[str, Any] = getattr(command, "commands", {})  # not by the class, since typer may bring a click of its own
    return {name: one.load() if hasattr(one, "load") else one for name, one in inner.items() if not one.hidden}


def _inside(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = inner_commands(command)
    if not inner:
        yield path, command
    for name, one in inner.items():
        yield from _inside(f"{path} {name}".strip(), one)


def section(names: str) -> str:
    """Format usage, text and options of a command, or of several with commas between them that have the same text and options."""
    paths = names.split(", ")
    command = commands()[paths[0]]
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    words = [_usage(one) for one in sorted(shown, key=_is_option) if len(paths) == 1 or not _is_option(one)]
    usages = [" ".join(["slipway", path, *words, *(["[OPTION]..."] if len(paths) > 1 else [])]) for path in paths]
    paragraphs = [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]
    rows = [[code([_words(one)]), _meaning(one)] for one in shown if not set(one.opts) & set(COMMON)]
    fence = "```\n" + "".join(f"{usage.strip()}\n" for usage in usages) + "```\n\n"
    return (
        fence
        + "\n\n".join(wrapped(paragraph) for paragraph in paragraphs)
        + "\n"
        + ("\n" + table(["word or option", "meaning"], rows) if rows else "")
    )


def _is_option(one: Any) -> bool:
    return bool(one.param_type_name == "option")


def _words(one: Any) -> str:
    """Return how an argument or option is typed: `--cell CELL`, `--json`, `STUDY`."""
    if not _is_option(one):
        return str(one.metavar or one.name.upper())
    value = "" if one.is_flag else f" {one.metavar or one.opts[0].strip('-').upper()}"
    return ", ".join(one.opts) + value


def _meaning(one: Any) -> str:
    text = one.help or "-"
    given = _is_option(one) and not one.is_flag and not callable(one.default) and one.default is not None
    return f"{text} Default: `{one.default}`." if given and "default" not in text.lower() else text


def _usage(one: Any) -> str:
    words = _words(one)
    return words if one.required or words.startswith("[") else f"[{words.replace(', -', '|-')}]"


def make_table(_: str) -> str:
    """Format the targets of the Makefile."""
    found = re.findall(r"^([a-z-]+):[^#\n]*##  *(.*)$", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE)
    return table(["target", "does"], ([code([f"make {name}"]), text] for name, text in found))
