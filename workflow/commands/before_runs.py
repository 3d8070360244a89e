"""Why a study's runs cannot start: the datasets and images that they wait for, and what the logs of these say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workflow.dag.image_file import images_file
from workflow.run.record.log_tail import last_error
from workflow.study.cell import datasets_of
from workflow.study.study import Study


@dataclass(frozen=True, kw_only=True, slots=True)
class Hindrance:
    """Something that all runs, or those of one dataset, cannot begin without."""

    what: str
    reason: str
    log: str


def hindrances(study: Study) -> tuple[Hindrance, ...]:
    """Pinned images and datasets that are not there and whose last attempt failed. Reads only. What several shards of a dataset say alike
    is there once, with the log of the first."""
    found: dict[tuple[str, str], Hindrance] = {}
    for what, log in _waited_for(study):
        if reason := last_error(log):
            found.setdefault((what, reason), Hindrance(what=what, reason=reason, log=str(log)))
    return tuple(found.values())


def _waited_for(study: Study) -> Iterator[tuple[str, Path]]:
    """What is not there, with each log that may say why."""
    images = images_file(study)
    if images is not None and not Path(images).exists():
        yield "the images", study.results_dir / "logs" / Path(images).with_suffix(".log").name
    for name in datasets_of(run.cell for run in study.runs):
        build = study.build_dir(name)
        if not (build / "dataset.json").exists():
            yield from ((f"dataset {name}", log) for log in sorted((build / "logs").glob("*.log")))
