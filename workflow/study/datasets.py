"""Specify datasets in cells as the study file writes them, so that a project can be moved and copied.

Earlier versions put absolute paths into cells. A study that has such results keeps these specifications, and with them the ids of its
cells, wherever it lies now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from base.worker import call_apart
from data_prep.spec import DatasetSpec
from workflow.study.publishing import STORAGE_S, known_datasets


def identities(datasets: Mapping[str, DatasetSpec], results_dir: Path, folder: Path) -> dict[str, DatasetSpec]:
    """Return the specification of each dataset as cells carry it. Raises StorageError.

    `folder`: where the study file is.
    """
    found = {name: spec.as_written() for name, spec in datasets.items()}
    relative = [name for name, spec in found.items() if spec != spec.resolved(folder)]
    if relative:
        values, folders = call_apart(f"study.json of {results_dir.name}", known_datasets, str(results_dir), timeout_s=STORAGE_S)
        known = [spec for value in values if (spec := _spec_of(value)) is not None]
        for name in relative:
            absolute = [found[name].resolved(Path(place)) for place in (*folders, folder)]
            found[name] = next((spec for spec in known if spec in absolute), found[name])
    return found


def _spec_of(value: Any) -> DatasetSpec | None:
    try:
        return DatasetSpec.model_validate(value)
    except ValidationError:  # of a version that has other keys
        return None


def spec_identity(spec: DatasetSpec) -> dict[str, Any]:
    """Return the keys of a specification that differ from the defaults of its kind of source.

    A new key with a default changes none of them.
    """
    values = spec.to_json()
    if spec.has_sequences:
        return {key: value for key, value in values.items() if value is not None}
    plain = {"source": spec.source} if spec.path is None else {"source": spec.source, "path": "default"}
    default = DatasetSpec.model_validate(plain).to_json()
    found = {key: value for key, value in values.items() if key in ("source", "path") or value != default.get(key)}
    if not spec.has_images:
        found.pop("shards", None)  # so many jobs hash it: its content is the same
    return found | {"source": spec.source}
