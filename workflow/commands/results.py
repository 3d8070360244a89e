"""Which results directories a command works on, and what must be there before tables are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from base.errors import UnsupportedRequest
from base.logs import private_umask
from workflow.commands.state import run_states
from workflow.study.paths import STUDY_FILE
from workflow.study.resolved import publish_resolved
from workflow.study.site_file import load_site
from workflow.study.study import Study, load_study


def results_as_they_are(study_path: Path, site: str | None, directories: Sequence[Path]) -> list[Path]:
    """`directories`, else that of the study; nothing is written."""
    return list(directories) or [load_study(study_path, site).results_dir]


def results_dirs(study_path: Path, site: str | None, directories: Sequence[Path]) -> list[Path]:
    """The same, to write tables into: the study's study.json is brought up to date."""
    if directories:
        private_umask(group=load_site(site).shared == "group")
        return list(directories)
    study = load_study(study_path, site)
    private_umask(group=study.site.shared == "group")
    refresh(study)
    return [study.results_dir]


def refresh(study: Study) -> bool:
    """Publish study.json as the study file is now; whether it changed. While a run goes on, supervisors read the one that is there."""
    there = (study.results_dir / STUDY_FILE).exists()
    if there and any(state.state == "running" for state in run_states(study)):
        return False
    return publish_resolved(study)


def report_outputs() -> ModuleType:
    """The report's module. Raises UnsupportedRequest where its libraries are not installed, as on compute nodes."""
    try:
        from workflow.report import outputs
    except ModuleNotFoundError as error:
        raise UnsupportedRequest(
            f"tables and plots need {error.name}, which is not installed here: pip install 'slipway[report]'"
        ) from error
    return outputs
