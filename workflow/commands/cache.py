"""List and remove what is in the cache of this node, for `slipway cache ls|rm`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from base.errors import StagingError
from base.humanize import format_size
from data_prep.cache import entries
from data_prep.cache.entries import Row
from workflow.commands.options import JsonOption, SiteOption
from workflow.commands.watching import output
from workflow.run.node.caches import caches_here, nothing_words
from workflow.study.next_command import completed
from workflow.study.site_file import chosen_site, load_site


def ls(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """List datasets, unfinished copies and undelivered results in this node's cache, last used first."""
    loaded = load_site(site)
    most = loaded.cache.max_bytes
    found = [(cache, entries.ls(cache, group=loaded.shared == "group")) for cache in caches_here(loaded)]
    if as_json:
        output.json_value([{"cache": str(cache), "max_bytes": most, "entries": [_json(row) for row in rows]} for cache, rows in found])
        return
    if not found:
        output.prose(nothing_words(loaded))
    for cache, rows in found:
        output.prose(f"{cache}: {format_size(sum(row.bytes for row in rows))}{f' of {format_size(most)}' if most else ''}", "  ")
        if rows:
            output.table(("name", "kind", "bytes", "last used", "state"), [_cells(row, loaded.storage) for row in rows])
    if any(row.kind == "result" for _, rows in found for row in rows):
        output.line(f"storage: {loaded.storage}")
        output.line(completed("what is not delivered: `slipway reap --push`", chosen_site(site, os.environ)))


def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets as `slipway cache ls` shows them.")],
    site: SiteOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also while a run uses it: the run reads on undisturbed.")] = False,
) -> None:
    """Remove staged datasets, or what is left of copies."""
    loaded = load_site(site)
    caches, group = caches_here(loaded), loaded.shared == "group"
    for name in names:
        having = [cache for cache in caches if any(_is_of(row, name) for row in entries.ls(cache, group=group))]
        if not having:
            known = sorted({row.name for cache in caches for row in entries.ls(cache, group=group) if row.kind == "dataset"})
            raise StagingError(f"{name!r} is in no cache of this node ({_paths_text(caches)}); there: {', '.join(known) or 'nothing'}")
        for cache in having:
            output.line(f"{cache}: {name} removed, {format_size(entries.rm(cache, name, force, group=group))} freed")


def _is_of(row: Row, name: str) -> bool:
    return row.kind != "result" and (row.name == name or row.name.startswith(f".{name}."))


def _paths_text(caches: Sequence[Path]) -> str:
    return ", ".join(map(str, caches)) or "there is none"


def _cells(row: Row, storage: Path) -> Sequence[object]:
    used = datetime.fromtimestamp(row.last_used).astimezone().isoformat(" ", "minutes")[:16]
    words = [f"in use by {lease}" for lease in row.leases]
    words += [f"DAMAGED: {row.damaged}"] if row.damaged else []
    words += [f"not delivered to {str(row.target).removeprefix(f'{storage}/')}"] if row.kind == "result" else []
    return row.name, row.kind, format_size(row.bytes), used, "; ".join(words) or None


def _json(row: Row) -> dict[str, object]:
    return {
        **{field.name: getattr(row, field.name) for field in dataclasses.fields(row)},
        "leases": [dict(lease.holder) for lease in row.leases],
    }
