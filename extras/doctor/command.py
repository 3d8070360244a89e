"""Check a site for `slipway doctor` and advise what to do, or write the draft of a site file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from base.errors import ConfigError
from base.finding import LEVELS, Finding, alike, by_subject
from base.tabular import wrapped
from base.units import counted
from extras.doctor.checks import run_checks
from extras.doctor.surroundings import Surroundings, look, try_inside
from workflow.commands.options import JsonOption, SiteOption
from workflow.commands.watching import output
from workflow.study.next_command import completed
from workflow.study.site import Site
from workflow.study.site_file import chosen_site, load_site

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
INDENT = 11
HARMLESS = "nothing: "
"""The beginning of an advice that says why there is nothing to do: it stands behind the text, and costs no line."""


def main(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="With --write-site: name or path of the new file; default: default.")
    ] = None,
    site: SiteOption = None,
    write: Annotated[
        bool, typer.Option("--write-site", help="Write the site file NAME.yaml from what is found here, instead of checking.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check scheduler, storage, cache, network and limits of a site, and say what to do; best inside an allocation too."""
    if name is not None and not write:
        raise typer.BadParameter(f"{name!r} goes with --write-site; the site to check is chosen by --site {name}")
    if write:
        from extras.doctor.write_site import write_site

        write_site(name or "default", look(os.environ), output.line)
    else:
        _check(load_site(site), site, as_json)


def _check(site: Site, site_name: str | None, as_json: bool) -> None:
    """Print every finding. Raises ConfigError when one of them is an error."""
    where = look(os.environ, site.scheduler)
    findings = [_whole(found, site_name) for found in run_checks(site, where, _progress if sys.stderr.isatty() else _silent)]
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    if as_json:
        output.json_value(_json(site, where, findings))
    else:
        _print(site, site_name, where, findings)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError(f"{counted(len(errors), 'error')} at the site {site.name!r}, the first: {errors[0].subject}: {errors[0].text}")


def _whole(found: Finding, site_name: str | None) -> Finding:
    """Complete the advice of a finding with the site that was asked about."""
    chosen = chosen_site(site_name, os.environ)
    return replace(found, text=completed(found.text, chosen), advice=completed(found.advice, chosen))


def _print(site: Site, site_name: str | None, where: Surroundings, findings: Sequence[Finding]) -> None:
    output.prose(f"site {site.name}: storage {site.storage}, cache {site.cache.path}, scheduler {site.scheduler}", "  ")
    output.prose(f"checked {where.describe(site)}", "  ")
    if site.scheduler != "local" and where.job_id is None:
        output.prose("not checked here: cache, GPUs, limits, clocks of the nodes; the launcher; whether nodes see storage. To check them:")
        output.line(f"  {try_inside(site, site_name or site.name)}")
    for subject, group in by_subject(alike(findings)):
        output.line()
        output.heading(subject)
        for finding in group:
            _line(finding, len(where.nodes))
    numbers = {level: sum(1 for finding in findings if finding.level == level) for level in LEVELS}
    said = ", ".join(counted(numbers[level], level) for level in ("error", "warning", "note"))
    output.line()
    output.line(f"{said}; {numbers['ok']} in order")
    sys.stdout.flush()


def _line(finding: Finding, num_nodes: int) -> None:
    nodes = "all nodes: " if len(finding.nodes) == num_nodes > 1 else f"{', '.join(finding.nodes)}: " if finding.nodes else ""
    width = max(40, output.width() or 10**6)
    space = " " * INDENT
    harmless = finding.advice.startswith(HARMLESS)
    said = f"{finding.text}; nothing to do: {finding.advice.removeprefix(HARMLESS)}" if harmless else finding.text
    text = wrapped(f"{nodes}{said}", width - INDENT - 1)
    advice = wrapped(finding.advice, width - INDENT - 4) if finding.advice and not harmless else []
    output.styled(f"  {finding.level:<{INDENT - 2}}", STYLES[finding.level], text[0])
    for part in text[1:]:
        output.line(space + part)
    for number, part in enumerate(advice):
        output.line(f"{space}{'   ' if number else '-> '}{part}")


def _json(site: Site, where: Surroundings, findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "site": site.to_json(),
        "host": where.hostname,
        "scheduler": where.scheduler,
        "job_id": where.job_id,
        "nodes": list(where.nodes),
        "findings": [finding.to_json() for finding in findings],
    }


def _progress(text: str) -> None:
    sys.stderr.write(f"\r\033[K{text} ...")
    sys.stderr.flush()


def _silent(text: str) -> None:  # noqa: ARG001 - nobody watches
    return
