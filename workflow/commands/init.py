"""Write a study file and a site file to begin with, for `slipway init DIR`: commented, complete, and good for `slipway plan` as they
are."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from base import humanize, publish
from base.errors import ConfigError
from cluster.installation import SCHEMAS, TEMPLATES
from workflow.commands.watching import output
from workflow.study.site_file import site_beside

STUDY: Final = "study.yaml"
SITE: Final = "site.yaml"
NAME: Final = "my-study"
SCHEMA_MARK: Final = "$schema="


def main(name: Annotated[str, typer.Argument(metavar="DIR", help="Where they go; made if it does not exist.")]) -> None:
    """Write a commented study file and a commented site file to begin with; what is there already is never overwritten."""
    if not name.strip() or "\0" in name:
        raise ConfigError(f"{name!r} is no name of a directory; `slipway init .` writes into the one you are in")
    directory = Path(name)
    targets = [directory / file for file in (STUDY, SITE)]
    for target in targets:
        if os.path.lexists(target):
            raise ConfigError(f"{target} is there already, and is not overwritten: choose another DIR, or remove it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for target in targets:
            publish.publish(target, text_of(target.name, humanize.slug(directory.absolute().name) or NAME).encode())
            output.line(f"written: {target}")
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{directory} can be no directory: {error.filename} is a file; choose another DIR") from error
    except OSError as error:
        raise ConfigError(f"nothing can be written in {directory}: {error.strerror or error}; choose another DIR") from error
    study, site = targets
    try:
        chosen = [] if site_beside(study, None, os.environ) == site else ["--site", str(site)]
    except ConfigError:  # of a directory that others can write to: there it is named
        chosen = ["--site", str(site)]
    output.line(f"next: read both, then {shlex.join(['slipway', 'plan', str(study), *chosen])}")


def text_of(name: str, study: str) -> str:
    """Return the text of a new file: the template's, with the study's name and the place of the schema, which editors read."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return text.replace(NAME, study).replace(SCHEMA_MARK, f"{SCHEMA_MARK}{SCHEMAS}/", 1)
