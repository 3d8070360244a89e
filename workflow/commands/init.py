"""Write a study file and a site file to begin with, for `slipway init DIR`: commented, complete, and good for `slipway run` as they are."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import typer

from base import humanize, publish
from base.errors import ConfigError
from cluster.installation import FILES, SCHEMAS, TEMPLATES
from workflow.commands.watching import output
from workflow.study.site_file import site_beside

STUDY: Final = "study.yaml"
SITE: Final = "site.yaml"
NAME: Final = "my-study"
SCHEMA_MARK: Final = "$schema="
Template = Literal["images", "my-script", "language-model", "inference"]
BESIDE: Final[dict[str, dict[str, str]]] = {
    "my-script": {"train/train.py": "examples/ddp/train/train.py"},
    "language-model": {"text.txt": "LICENSE"},
}
"""What a template needs beside its study file: name -> our file that is copied."""


def main(
    name: Annotated[str, typer.Argument(metavar="DIR", help="Where they go; made if it does not exist.")],
    template: Annotated[
        Template, typer.Option("--template", help="What the study measures; each runs as it is, on a laptop too.")
    ] = "images",
) -> None:
    """Write DIR/study.yaml and DIR/site.yaml to begin with, complete, commented and good for `slipway run` as they are.

    --template chooses what the study measures: `images`, `my-script` (with a script in `train/`), `language-model` (with a text) or
    `inference`. The study is named after DIR, the site file is used for the studies beside it, and results go to `DIR/storage`. Existing
    files are never overwritten (exit 10).
    """
    if not name.strip() or "\0" in name:
        raise ConfigError(f"{name!r} is no name of a directory; `slipway init .` writes into the one you are in")
    directory = Path(name)
    files = files_of(template, humanize.slug(directory.absolute().name) or NAME)
    targets = {directory / file: content for file, content in files.items()}
    for target in targets:
        if os.path.lexists(target):
            raise ConfigError(f"{target} is there already, and is not overwritten: choose another DIR, or remove it")
    try:
        for target in targets:  # before any file is written: a half would be in the way of the next try
            target.parent.mkdir(parents=True, exist_ok=True)
        for target, content in targets.items():
            publish.publish(target, content)
            output.line(f"written: {target}")
    except OSError as error:
        raise ConfigError(f"nothing can be written in {directory}: {error.filename}: {error.strerror}; choose another DIR") from error
    _print_next(directory)
    if template == "images":
        output.line(f"other studies to begin with: --template {' | '.join(get_args(Template)[1:])}")


def _print_next(directory: Path) -> None:
    study, site = directory / STUDY, directory / SITE
    try:
        chosen = [] if site_beside(study, None, os.environ) == site else ["--site", str(site)]
    except ConfigError:  # of a directory that others can write to: there it is named
        chosen = ["--site", str(site)]
    output.line(f"next: read both, then {shlex.join(['slipway', 'plan', str(study), *chosen])}")
    output.line(f"      which says what it runs and where results go; {shlex.join(['slipway', 'run', str(study), *chosen])} runs it")


def files_of(template: str, study: str) -> dict[str, bytes]:
    """Return the new files by name: study and site with the study's name and the place of the schema, and what the study needs."""
    written = {STUDY: text_of(template, study).encode(), SITE: text_of("site", study).encode()}
    return written | {name: (FILES / source).read_bytes() for name, source in BESIDE.get(template, {}).items()}


def text_of(template: str, study: str) -> str:
    """Return the text of a new file: the template's, with the study's name and the place of the schema, which editors read."""
    text = (TEMPLATES / f"{template}.yaml").read_text(encoding="utf-8")
    return text.replace(NAME, study).replace(SCHEMA_MARK, f"{SCHEMA_MARK}{SCHEMAS}/", 1)
