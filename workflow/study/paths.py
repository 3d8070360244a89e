"""Name the paths of a study's files on storage. It needs the standard library only."""

from pathlib import Path

STUDY_FILE = "study.json"
STUDY_SOURCE = "study.yaml"
"""The study file as it was typed, beside the study that it came to."""


def results_dir(storage: Path, study: str) -> Path:
    """Return `<storage>/results/<study>`."""
    return storage / "results" / study


def datasets_dir(storage: Path) -> Path:
    """Return `<storage>/datasets`, which has published datasets, and in `.build/` those in the making."""
    return storage / "datasets"


def build_dir(storage: Path, dataset: str, spec12: str) -> Path:
    """Return the directory in which a dataset is built; its `dataset.json` is what runs depend on."""
    return datasets_dir(storage) / ".build" / f"{dataset}-{spec12}"


def run_dir(results: Path, run_id: str) -> Path:
    """Return the directory of a run, below its study's results."""
    return results / "runs" / run_id


def record_path(results: Path, run_id: str) -> Path:
    """Return the path of the record that makes a run done; only results have it, never prevented attempts."""
    return run_dir(results, run_id) / "record.json"


def attempts_dir(results: Path, run_id: str) -> Path:
    """Return the directory with one directory per attempt, named by its number from 1."""
    return run_dir(results, run_id) / "attempts"


def kept_program(results: Path, digest: str) -> Path:
    """Return the directory with the files of a program of the study, as they were when they had that digest."""
    return results / "programs" / digest


def supervisor_log(results: Path, run_id: str) -> Path | None:
    """Return the newest log of the run's supervisors, or None.

    A retry has a log of its own, named by the requested result.
    """
    logs = [results / "logs" / f"{run_id}.log", *(results / "logs").glob(f"{run_id}.after-*.log")]
    return max((log for log in logs if log.is_file()), key=lambda log: log.stat().st_mtime, default=None)
