"""A small valid study as a mapping, and ways to change it and write it down."""

import copy
import json
from pathlib import Path
from typing import Any

from workflow.study.study import Study, load_study

NO_SITE: dict[str, str] = {}

SMALL: dict[str, Any] = {
    "study": "small",
    "datasets": {"digits": {"source": "sklearn-digits", "size": 32, "shards": 4}},
    "base": {"dataset": "digits", "repeats": 2},
    "axes": {"model": ["lenet"], "batch_size": [32, 64], "nodes": [1, 2]},
}


def changed(**changes: Any) -> dict[str, Any]:
    """SMALL with some top-level keys replaced; None removes a key, a mapping is merged one level deep."""
    study = copy.deepcopy(SMALL)
    for key, value in changes.items():
        if value is None:
            study.pop(key, None)
        elif isinstance(value, dict) and isinstance(study.get(key), dict) and key in ("base", "axes", "datasets"):
            study[key] = {name: item for name, item in {**study[key], **value}.items() if item is not None}
        else:
            study[key] = value
    return study


def write(folder: Path, study: dict[str, Any] | str, name: str = "study.yaml") -> Path:
    """The study as a file; JSON is YAML."""
    path = folder / name
    path.write_text(study if isinstance(study, str) else json.dumps(study, indent=1))
    return path


def load(folder: Path, study: dict[str, Any] | str, site: str | None = "local") -> Study:
    """Write and load it."""
    return load_study(write(folder, study), site, NO_SITE)
