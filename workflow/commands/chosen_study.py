"""Load the study that a command was given, and name its site where nobody chose one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.errors import ConfigError
from base.logs import printable
from workflow.study.next_command import completed
from workflow.study.site_file import chosen_site, site_beside
from workflow.study.study import Study, load_study


def load_chosen_study(path: Path, site: str | None) -> Study:
    """Load the study; say first of all which site it is where that is the file beside the study."""
    study = load_study(path, site, os.environ)
    print_site(study)
    return study


def whole_commands(message: str, options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> str:
    """Complete the commands that `message` proposes. `options`: of the command that prints it."""
    typed = [word for word in options.get("words") or () if word.endswith((".yaml", ".yml"))][:1]
    typed += [str(place) for place in options.get("places") or () if place.suffix in (".yaml", ".yml")]
    study = Path(typed[0]) if typed else options.get("study")
    try:
        study = study if study is not None and study.is_file() else None  # a file that is not there is no part of an answer
        beside = None if study is None else site_beside(study, options.get("site"), environ)
    except (OSError, ConfigError):  # it is what the message is about
        return message
    try:
        site = chosen_site(options.get("site"), environ) if beside is None else str(beside.absolute())
    except ValueError:  # what was typed is not a path
        return message
    return completed(message, site, study)


def print_site(study: Study) -> None:
    """Name the site on standard error, since standard output may be a document."""
    if study.site_beside is not None:
        sys.stderr.write(f"site: {printable(str(study.site_beside))}, beside the study\n")
