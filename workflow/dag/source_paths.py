"""Sources of datasets that are not where the study says."""

from __future__ import annotations

import os
from collections.abc import Iterable

from base.errors import ConfigError
from workflow.study.study import Study


def missing_sources(study: Study, names: Iterable[str]) -> list[str]:
    """One line per path that does not exist, of the datasets `names` that are still to be built."""
    lines = []
    for name in sorted(names):
        if (study.build_dir(name) / "dataset.json").exists():
            continue
        spec = study.datasets[name]
        paths = {"path": spec.path} | {f"splits.{split}.path": path for split, path in spec.split_paths.items()}
        lines += [
            f"datasets.{name}.{key}: {path} does not exist on this machine; give the source's path (relative: to the study file)"
            for key, path in paths.items()
            if path is not None and not os.path.lexists(path)
        ]
    return lines


def refuse_missing_sources(study: Study, names: Iterable[str]) -> None:
    """Raise ConfigError when a dataset is to be built and its source is not there."""
    lines = missing_sources(study, names)
    if lines:
        raise ConfigError("\n".join(f"{study.path}: {line}" for line in lines))
