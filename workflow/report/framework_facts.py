"""Table `framework-facts`: what is told of the frameworks, and what of it a test of ours ran. From framework.yaml and
other-frameworks.yaml, not from records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from containers.frameworks import FRAMEWORKS, load_framework
from containers.frameworks.facts import Facts, load_other_facts, told
from containers.frameworks.spec import FrameworkSpec
from containers.models import MODELS, of_tokens
from workflow.report.analysis import Analysis
from workflow.report.table import Column, Table, Value, text

NAME: Final = "framework-facts"
ABLE: Final = {
    "interfaces": "interfaces",
    "data_parallel": "data parallel",
    "model_parallel": "model parallel",
    "devices": "devices",
    "lmdb": "reads LMDB",
}
COLUMNS: Final = (
    *(Column(key=key, title=key.capitalize(), number=False) for key in ("framework", "version", "launcher", "status")),
    Column(key="release", title="Last release", number=False),
    Column(key="released", title="Month", number=False),
    Column(key="licence", title="Licence", number=False),
    Column(key="networks", title="Networks", number=False, wrap=True),
    *(Column(key=f"verified_{key}", title=f"Verified: {title}", number=False, wrap=True) for key, title in ABLE.items()),
    *(Column(key=f"claimed_{key}", title=f"Claimed: {title}", number=False, wrap=True) for key, title in ABLE.items()),
    Column(key="verified_by", title="Verified by", number=False, wrap=True),
    Column(key="missing", title="Not supported, and why", number=False, wrap=True),
    Column(key="sources", title="Claims and status by", number=False, wrap=True),
    Column(key="note", title="Note", number=False, wrap=True),
)

PARTS: Final = {
    "Facts of the frameworks": ("version", "launcher", "status", "release", "released", "licence", "networks"),
    "Verified: what a test of ours ran": tuple(f"verified_{key}" for key in ABLE),
    "Claimed: what the sources say, and we have not tried": tuple(f"claimed_{key}" for key in ABLE),
    "Verified by": ("verified_by",),
    "Never run by a test of ours": ("note",),
    "Not supported, and why": ("missing",),
    "Sources of claims, status, release and licence": ("sources",),
}
"""Title -> columns."""


def of_study(analysis: Analysis) -> Table:
    """Of the frameworks of the study; programs of its own are none, and what another version knew is left out."""
    return facts_table(cell.keys["framework"] for cell in analysis.cells if not cell.keys.get("program"))


def facts_table(names: Iterable[str] | None = None) -> Table:
    """One row per framework, in the order of FRAMEWORKS. Without `names`: all of them, and those that Slipway does not run."""
    wanted = set(FRAMEWORKS if names is None else names)
    rows = [_row(load_framework(name)) for name in FRAMEWORKS if name in wanted]
    if names is None:
        rows += [_row_of_other(name, facts) for name, facts in load_other_facts().items()]
    return Table(
        name=NAME,
        title="Facts of the frameworks",
        caption="Version: what Slipway installs. Verified: the test that is named ran it. Claimed: told by the sources that are named, "
        "and not tried by us; so are status, last release and licence. An empty cell: not tried, or not told; "
        "no: the sources say that it has none. Reads LMDB: by itself; Slipway's reader gives it to all.",
        columns=COLUMNS,
        rows=tuple(rows),
        empty="No framework of Slipway's.",
    )


def in_parts(table: Table) -> list[Table]:
    """For a terminal, which has no room for all columns: what is told of each, what a test ran, what is claimed, and by whom. A part has
    the frameworks that it tells something of."""
    parts = [_part(table, title, keys) for title, keys in PARTS.items()]
    return [*parts[:-1], replace(parts[-1], caption=table.caption)]


def _part(table: Table, title: str, keys: Sequence[str]) -> Table:
    places = [0, *(place for place, column in enumerate(table.columns) if column.key in keys)]
    rows = (tuple(row[place] for place in places) for row in table.rows)
    columns = tuple(replace(table.columns[place], title=_short(table.columns[place].title)) for place in places)
    return replace(table, title=title, caption="", columns=columns, rows=tuple(row for row in rows if any(value.text for value in row[1:])))


def _short(title: str) -> str:
    """`Verified: reads LMDB` below the title that says what it is: `Reads LMDB`."""
    word = title.rpartition(": ")[2]
    return word[:1].upper() + word[1:]


def _row(spec: FrameworkSpec) -> tuple[Value, ...]:
    missing = "; ".join(f"{', '.join(one.words)}: {one.why}" for one in spec.missing)
    return _of_words([spec.name, _version(spec), spec.launcher], spec.facts, _networks(spec), missing, _note(spec))


def _row_of_other(name: str, facts: Facts) -> tuple[Value, ...]:
    return _of_words([name, "", ""], facts, "", "", "Slipway does not run it")


def _of_words(words: Sequence[str], facts: Facts | None, networks: str, missing: str, note: str) -> tuple[Value, ...]:
    known = ["", "", "", ""] if facts is None else [facts.status, facts.release, facts.released or "", facts.licence]
    verified = None if facts is None else facts.verified
    able = [*told(verified).values(), *told(None if facts is None else facts.claimed).values()]
    last = [verified.by if verified else "", missing, "; ".join(facts.sources) if facts else "", note]
    return tuple(map(text, [*words, *known, networks, *able, *last]))


def _networks(spec: FrameworkSpec) -> str:
    """How many of Slipway's it trains."""
    able, tokens = set(spec.supports.models), set(of_tokens())
    parts = {"images": set(MODELS) - tokens, "tokens": tokens}
    return ", ".join(f"{len(able & names)} of {len(names)} for {what}" for what, names in parts.items())


def _version(spec: FrameworkSpec) -> str:
    """The pinned one; of a framework that is no package the tag of its image."""
    pinned = next((package for package in spec.packages if "==" in package), None)
    return pinned.split("==")[1] if pinned else spec.image.rpartition(":")[2]


def _note(spec: FrameworkSpec) -> str:
    if spec.facts is None or spec.facts.verified is not None:
        return ""
    return "never run by a test of ours" + (f": {spec.containers_only}" if spec.containers_only else "")
