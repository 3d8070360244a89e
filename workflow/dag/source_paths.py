"""Sources of datasets that are not where the study says, and trees of files that are not what was hashed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from base.apart import call_apart
from base.errors import ConfigError, DatasetError
from data_prep.tree.names import advice
from workflow.study.loader import parse_document
from workflow.study.origin import STORAGE_S
from workflow.study.study import Study


def missing_sources(study: Study, names: Iterable[str]) -> list[str]:
    """One line per path that does not exist, of the datasets `names` that are still to be built, with where the study says it."""
    lines = []
    document = parse_document(study.text, study.path, "study")
    for name in sorted(names):
        if (study.build_dir(name) / "dataset.json").exists():
            continue
        spec = study.datasets[name]
        paths = {"path": spec.path} | {f"splits.{split}.path": path for split, path in spec.split_paths.items()}
        lines += [
            f"{document.where(('datasets', name, *key.split('.')))}: datasets.{name}.{key}: {path} does not exist on this machine; give "
            "the source's path (relative: to the study file)"
            for key, path in paths.items()
            if path is not None and not os.path.lexists(path)
        ]
    return lines


def refuse_missing_sources(study: Study, names: Sequence[str]) -> None:
    """Raise ConfigError when a dataset is to be built and its source is not there; DatasetError, StorageError when a tree of files, which
    is read where it lies whenever it is staged, is not what was hashed."""
    lines = missing_sources(study, names)
    if lines:
        raise ConfigError("\n".join(lines))
    trees = [name for name in names if study.datasets[name].is_tree and (study.build_dir(name) / "plan.json").exists()]
    for name in trees:
        changed: str | None = call_apart(f"the files of dataset {name}", _changed, str(study.build_dir(name)), timeout_s=STORAGE_S)
        if changed is not None:
            command = study.command("dataset", "build", name, "--fresh", "--study", str(study.path))
            raise DatasetError(f"{study.path}: datasets.{name}: {changed}; {advice(command)}")


def _changed(build_dir: str) -> str | None:
    """Return how a source has changed since it was built. It is called in a process of its own, because storage may hang."""
    from data_prep.tree.plan import changed_since

    return changed_since(Path(build_dir))
