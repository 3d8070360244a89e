"""The study that a command was given, and a word on its site where nobody chose one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from base.logs import printable
from workflow.study.study import Study, load_study


def told_study(path: Path, site: str | None, environ: Mapping[str, str] = os.environ) -> Study:
    """load_study(); says first of all which site it is where that is the file beside the study."""
    study = load_study(path, site, environ)
    tell_site(study)
    return study


def tell_site(study: Study) -> None:
    """On standard error, since standard output may be a document."""
    if study.site_beside is not None:
        sys.stderr.write(f"site: {printable(str(study.site_beside))}, beside the study\n")
