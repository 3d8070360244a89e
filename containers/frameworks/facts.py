"""What is known of a framework beside how it is started: `facts` of framework.yaml, and other-frameworks.yaml. Table `framework-facts`
shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from base.errors import ConfigError
from base.jsonfile import read_content
from base.typed import Check, Closed, read_as
from containers.yamltext import parse_yaml

OTHERS: Final = Path(__file__).with_name("other-frameworks.yaml")
MAX_LINE: Final = 200
MAX_LINES: Final = 20


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_LINE and value.isprintable()


Line = Annotated[str, Check(f"text of 1 to {MAX_LINE} characters that can be printed", _is_line)]
Lines = Annotated[tuple[Line, ...], Check(f"at most {MAX_LINES} entries", lambda value: len(value) <= MAX_LINES)]
When = Annotated[
    str, Check("a year, or year and month as 2026-10, in quotes", lambda value: re.fullmatch(r"\d{4}(-\d\d)?", value) is not None)
]
Status = Literal["maintained", "dormant", "ended", "archived"]
"""Releases come; none comes any more; its makers said that it is over; its repository can only be read."""


@dataclass(frozen=True, kw_only=True)
class Able(Closed):
    """What a framework has. `data_parallel`, `model_parallel`: by what; `lmdb`: whether it reads LMDB by itself."""

    interfaces: Lines = ()
    data_parallel: Line | None = None
    model_parallel: Line | None = None
    devices: Lines = ()
    lmdb: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Verified(Able):
    """The features of a framework that the test `by` ran."""

    by: Line


@dataclass(frozen=True, kw_only=True)
class Facts(Closed):
    """The facts about a framework. `claimed`: what `sources` say of it. `verified`: what a test of ours ran; None: it was never run."""

    status: Status
    release: Line
    released: When | None = None
    licence: Line
    claimed: Able
    sources: Lines
    verified: Verified | None = None


def load_other_facts() -> Mapping[str, Facts]:
    """Return the facts of frameworks that comparisons name and that Slipway does not run, by name. Raises ConfigError."""
    found = parse_yaml(read_content(OTHERS, ConfigError), OTHERS, ConfigError)
    return {str(name): read_as(Facts, facts, OTHERS, ConfigError) for name, facts in found.items()}


def told(able: Able | None) -> Mapping[str, str]:
    """Return the fields as words, in order; empty where nothing is told."""
    if able is None:
        able = Able()
    lmdb = {None: "", True: "yes", False: "no"}[able.lmdb]
    return {
        "interfaces": ", ".join(able.interfaces),
        "data_parallel": able.data_parallel or "",
        "model_parallel": able.model_parallel or "",
        "devices": ", ".join(able.devices),
        "lmdb": lmdb,
    }
