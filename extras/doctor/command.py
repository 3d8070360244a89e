"""Check a site for `slipway doctor` and advise what to do."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
import typer

from base.errors import ConfigError
from base.humanize import counted
from base.tabular import wrapped
from extras.doctor.checks import run_checks
from extras.doctor.schedulers import BATCH, surroundings
from extras.doctor.types import LEVELS, Context, Finding, by_subject
from workflow.commands.options import JsonOption, SiteOption
from workflow.commands.watching import output
from workflow.study.next_command import completed
from workflow.study.site import Site
from workflow.study.site_file import chosen_site, load_site

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
INDENT = 11


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
    """Check scheduler, partitions, launcher, storage, cache, network, GPUs, engines and limits of a site, and say what to do.

    Run it twice: on a login node, and inside an allocation by the command that it prints. Nothing is left behind, and no check can
    hang or crash the others. `ok`: in order. `note`: worth knowing. `warning`: it costs time, or fails in some case. `error`: runs
    would not work, or could not be trusted; exit 10.

    With --write-site it writes a site file from what it finds, and asks nothing. Comments say where each value comes from, and mark
    guesses. The file goes to `config/sites/` of a checkout, otherwise to `~/.config/slipway/sites`; an existing file is never
    overwritten.
    """
    if name is not None and not write:
        raise typer.BadParameter(f"{name!r} goes with --write-site; the site to check is chosen by --site {name}")
    if write:
        from extras.doctor.write_site import write_site

        write_site(name or "default")
    else:
        report(site, as_json=as_json)


def report(site_name: str | None, *, as_json: bool) -> None:
    """Print every finding. Raises ConfigError when one of them is an error."""
    site = load_site(site_name)
    chosen = chosen_site(site_name, os.environ)
    context = surroundings(os.environ, site)
    found = run_checks(context, _show_progress if sys.stderr.isatty() else lambda _text: None)
    findings = [replace(one, text=completed(one.text, chosen), advice=completed(one.advice, chosen)) for one in found]
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    if as_json:
        output.json_value(
            {
                "site": site.to_json(),
                "host": context.hostname,
                "scheduler": context.scheduler,
                "job_id": context.job_id,
                "nodes": list(context.nodes),
                "findings": msgspec.to_builtins(findings),
            }
        )
    else:
        _print(context, site_name or site.name, findings)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError(f"{counted(len(errors), 'error')} at the site {site.name!r}, the first: {errors[0].subject}: {errors[0].text}")


def allocation_command(site: Site, choice: str) -> str:
    """Return the command that makes the checks that need compute nodes. `choice`: what --site takes."""
    own = sys.argv[0] if "/" in sys.argv[0] else "slipway"
    return shlex.join([*BATCH[site.scheduler].allocation(site), own, "doctor", "--site", choice])


def _print(context: Context, choice: str, findings: Sequence[Finding]) -> None:
    site = context.site
    output.prose(f"site {site.name}: storage {site.storage}, cache {site.cache.path}, scheduler {site.scheduler}", "  ")
    output.prose(f"checked {context.describe()}", "  ")
    if context.place == "login":
        output.prose("not checked here: cache, GPUs, limits; the launcher; whether nodes see storage. To check them:")
        output.line(f"  {allocation_command(site, choice)}")
    for subject, group in by_subject(findings):
        output.line()
        output.heading(subject)
        for finding in group:
            _line(finding, len(context.nodes))
    numbers = {level: sum(1 for finding in findings if finding.level == level) for level in LEVELS}
    said = ", ".join(counted(numbers[level], level) for level in ("error", "warning", "note"))
    output.line()
    output.line(f"{said}; {numbers['ok']} in order")
    sys.stdout.flush()


def _line(finding: Finding, num_nodes: int) -> None:
    nodes = "all nodes: " if len(finding.nodes) == num_nodes > 1 else f"{', '.join(finding.nodes)}: " if finding.nodes else ""
    width = max(40, output.width() or 10**6)
    space = " " * INDENT
    text = wrapped(f"{nodes}{finding.text}", width - INDENT - 1)
    advice = wrapped(finding.advice, width - INDENT - 4) if finding.advice else []
    output.styled(f"  {finding.level:<{INDENT - 2}}", STYLES[finding.level], text[0])
    for part in text[1:]:
        output.line(space + part)
    for number, part in enumerate(advice):
        output.line(f"{space}{'   ' if number else '-> '}{part}")


def _show_progress(text: str) -> None:
    sys.stderr.write(f"\r\033[K{text} ...")
    sys.stderr.flush()
