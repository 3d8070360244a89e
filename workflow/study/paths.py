"""Where the files of a study lie on storage. Standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STUDY_FILE = "study.json"
STUDY_SOURCE = "study.yaml"
"""The study file as it was typed, beside the study that it came to."""


def results_dir(storage: Path, study: str) -> Path:
    """`<storage>/results/<study>`."""
    return storage / "results" / study


def datasets_dir(storage: Path) -> Path:
    """`<storage>/datasets`: published datasets, and `.build/` with those in the making."""
    return storage / "datasets"


def build_dir(storage: Path, dataset: str, spec12: str) -> Path:
    """The directory in which a dataset is built; its `dataset.json` is what runs depend on."""
    return datasets_dir(storage) / ".build" / f"{dataset}-{spec12}"


def run_dir(results: Path, run_id: str) -> Path:
    """The directory of a run, below its study's results."""
    return results / "runs" / run_id


def record_path(results: Path, run_id: str) -> Path:
    """The record that makes a run done; there only for results, never for prevented attempts."""
    return run_dir(results, run_id) / "record.json"


def attempts_dir(results: Path, run_id: str) -> Path:
    """One directory per attempt, named by its number from 1."""
    return run_dir(results, run_id) / "attempts"


def kept_program(results: Path, digest: str) -> Path:
    """The files of a program of the study, as they were when they had that digest."""
    return results / "programs" / digest


REFUSED: Final = ".refused.log"
"""How the file ends in which a supervisor says that another one has the run, beside the log of that one."""


def supervisor_log(results: Path, run_id: str) -> Path | None:
    """The newest log of the run's supervisors: what a retry writes is named by what was asked of the run. None: there is none."""
    logs = [results / "logs" / f"{run_id}.log", *(results / "logs").glob(f"{run_id}.after-*.log")]
    return max((log for log in logs if log.is_file() and not log.name.endswith(REFUSED)), key=lambda log: log.stat().st_mtime, default=None)
