"""List and remove what is in the cache of this node, for `slipway cache ls|rm`, and what earlier runs have left on it, for `slipway reap`.

Runs leave results that storage did not take, containers whose job is gone, files of the dead, images that nobody used lately.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from base.errors import ContainerError, PushError, SlipwayError, StagingError, StorageError
from base.humanize import counted, format_duration, format_size
from base.logs import private_umask
from containers.engines import in_container
from containers.reaping import Decision, engines_here, jobs_alive, ours, plan_reap
from containers.reaping import remove as remove_container
from data_prep.cache import entries
from workflow.commands.options import JsonOption, SiteOption
from workflow.commands.watching import output
from workflow.run.node.caches import cache_here, cache_words, caches_here, nothing_words
from workflow.run.node.workdir import deliver, sweep
from workflow.study.next_command import completed
from workflow.study.site import Site
from workflow.study.site_file import chosen_site, load_site

if TYPE_CHECKING:
    from containers.images.reaping import LoadedImage


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
    """Remove staged datasets, or what is left of copies. A dataset that a run uses is refused, unless --force."""
    loaded = load_site(site)
    caches, group = caches_here(loaded), loaded.shared == "group"
    for name in names:
        having = [cache for cache in caches if any(_is_of(row, name) for row in entries.ls(cache, group=group))]
        if not having:
            known = sorted({row.name for cache in caches for row in entries.ls(cache, group=group) if row.kind == "dataset"})
            raise StagingError(f"{name!r} is in no cache of this node ({_paths_text(caches)}); there: {', '.join(known) or 'nothing'}")
        for cache in having:
            output.line(f"{cache}: {name} removed, {format_size(entries.rm(cache, name, force, group=group))} freed")


def _is_of(row: entries.Row, name: str) -> bool:
    return row.kind != "result" and (row.name == name or row.name.startswith(f".{name}."))


def _paths_text(caches: Sequence[Path]) -> str:
    return ", ".join(map(str, caches)) or "there is none"


def _cells(row: entries.Row, storage: Path) -> Sequence[object]:
    used = datetime.fromtimestamp(row.last_used).astimezone().isoformat(" ", "minutes")[:16]
    words = [f"in use by {lease}" for lease in row.leases]
    words += [f"DAMAGED: {row.damaged}"] if row.damaged else []
    words += [f"not delivered to {str(row.target).removeprefix(f'{storage}/')}"] if row.kind == "result" else []
    return row.name, row.kind, format_size(row.bytes), used, "; ".join(words) or None


def _json(row: entries.Row) -> dict[str, object]:
    return {
        **{field.name: getattr(row, field.name) for field in dataclasses.fields(row)},
        "leases": [dict(lease.holder) for lease in row.leases],
    }


# Remove what earlier runs have left on this node, for `slipway reap`.


def reap(
    push: Annotated[bool, typer.Option("--push", help="Deliver results that storage did not take; default: only count.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is of jobs and runs that are gone; default: only list.")] = False,
    images: Annotated[bool, typer.Option("--images", help="Images of ours that no run used lately, instead of what runs left.")] = False,
    site: SiteOption = None,
) -> None:
    """Show what earlier runs left on this node: results that wait in its cache, containers and files of runs that are gone.

    With --push results are delivered: yours only, and only to the run of the study that they belong to. When the files of all nodes
    of the run are there, its record is published. Exit 18 while one still waits. With --remove it removes containers whose job is
    gone, work directories in which nobody works, and their leases of datasets; exit 22 if something cannot be removed, which is
    named. Every run does both when it starts on a node.

    With --images it is about images instead: those that no run has used for 7 days, and parts that killed loads left. Only images
    under Slipway's own tag are removed, never by force.
    """
    _reap(load_site(site), chosen_site(site, os.environ), push, remove, images)


def _reap(site: Site, chosen: str | None, push: bool, remove_dead: bool, images: bool) -> None:
    """Raise PushError for a result that could not be delivered, ContainerError or StorageError for what could not be removed."""
    private_umask(group=site.shared == "group")
    if images:
        problems = list(_images(site, remove_dead))
        if push:
            _push(site, chosen)
        if problems:
            raise problems[0]
        return
    failures: list[SlipwayError] = []
    if remove_dead or not push:
        failures = [*_containers(site, remove_dead), *_work_directories(site, remove_dead)]
    if push:
        _push(site, chosen)
    elif not remove_dead:
        waiting = sum(1 for cache in caches_here(site) for _ in (cache / "runs").glob("*/pending.json"))
        how = completed("; `slipway reap --push` delivers", chosen) if waiting else ""
        output.line(f"{counted(waiting, 'result waits', 'results wait')} in this node's cache {cache_words(site, chosen)}{how}")
    if failures and remove_dead:
        raise failures[0]


def _work_directories(site: Site, act: bool) -> Iterator[StorageError]:
    """Print a line per work directory of a run whose node program is gone, and yield what could not be removed.

    The leases of datasets go with them.
    """
    for cache in caches_here(site):
        for name, problem in sweep(cache / "runs", act=act).items():
            output.line(f"work directory {name}: {_removed(problem, act)}: its run is dead")
            if problem is not None:
                yield StorageError(f"work directory {name} stays: {problem}")
        if act:
            entries.ls(cache, group=site.shared == "group")  # looking at a lease drops it where its holder is gone


def _removed(problem: str | None, act: bool) -> str:
    return "would be removed by --remove" if not act else "removed" if problem is None else "stays"


def _images(site: Site, act: bool) -> Iterator[SlipwayError]:
    """Print a line per image of ours that was not used lately, in every engine that is here, and yield errors.

    Images that stay have a line with the reason. An engine that does not answer matters where it is the site's.
    """
    from containers.images.pinning import FILE_ENGINES
    from containers.images.reaping import reap_images, reap_parts
    from containers.limits import IMAGE_UNUSED_S

    cache = cache_here(site)
    for engine in dict.fromkeys((*engines_here(), *FILE_ENGINES)):
        try:
            found = reap_images(engine, cache, act=act)
        except ContainerError as error:
            output.line(f"{engine}: {error}")
            if engine == site.engine:
                yield error
            continue
        for image, why in found:
            output.line(_described_image(image, why, act))
        output.line(f"{engine}: {counted(len(found), 'image', 'images')} of Slipway not used for {IMAGE_UNUSED_S / 86400:g} days")
    for part, problem in reap_parts(cache, act=act):
        output.line(f"{part}, half an archive: {_removed(problem, act)}: its load was killed")
        if problem is not None:
            yield StorageError(problem)


def _described_image(image: LoadedImage, why: str | None, act: bool) -> str:
    what = f"stays: {why}" if why else "removed" if act else "would be removed by --remove"
    used = "used by no run that left a mark" if image.used is None else f"last used {format_duration(time.time() - image.used)} ago"
    return f"image {image.short} ({image.handle}), {format_size(image.bytes)}, {used}: {what}"


def _containers(site: Site, act: bool) -> Iterator[ContainerError]:
    """Print a line per container of ours, remove it if `act`, and yield errors.

    An engine that does not answer matters where it is the site's.
    """
    for engine in engines_here():
        try:
            decisions = plan_reap(ours(engine), jobs_alive, os.geteuid())
        except ContainerError as error:
            if in_container(site.engine):  # a site without containers has nothing to do with an engine that does not answer
                output.line(f"{engine}: {error}")
            if engine == site.engine:
                yield error
            continue
        for decision in decisions:
            problem = _reaped(decision) if act and decision.remove else None
            if problem is not None:
                yield problem
            output.line(_described(decision, act, problem))
        output.line(f"{engine}: {counted(len(decisions), 'container', 'containers')} of Slipway")


def _reaped(decision: Decision) -> ContainerError | None:
    try:
        remove_container(decision.container)
    except ContainerError as error:
        return error
    return None


def _described(decision: Decision, act: bool, problem: ContainerError | None) -> str:
    what = "stays" if not decision.remove else "would be removed by --remove" if not act else "removed"
    return f"{decision.container.engine} {decision.container.name}: {problem or what}: {decision.reason}"


def _push(site: Site, chosen: str | None) -> None:
    deliveries = [delivery for cache in caches_here(site) for delivery in deliver(cache, site.storage)]
    for delivery in deliveries:
        output.line(f"{delivery.run_dir.name} -> {delivery.target}: {delivery.message}")
    failed = [delivery for delivery in deliveries if not delivery.delivered]
    if deliveries:
        output.line(f"{len(deliveries) - len(failed)} of {counted(len(deliveries), 'waiting result')} delivered")
    else:
        output.line(f"no result waits in this node's cache {cache_words(site, chosen)}; that of another site: --site NAME_OR_PATH")
    if failed:
        raise PushError(
            f"{counted(len(failed), 'result still waits', 'results still wait')} on this node, the first because: {failed[0].message}"
        )
