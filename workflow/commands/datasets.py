"""Which dataset a word on the command line means: a name of the study, or the directory of a built one."""

from __future__ import annotations

from pathlib import Path

from base.errors import ConfigError, DatasetError
from base.names import choices
from data_prep.manifest import FILE_NAME
from workflow.dag.requirements import dataset_needs
from workflow.study.study import Study, load_study


def dataset_root(study_path: Path, site: str | None, name: str) -> Path:
    """The directory of the built dataset. Raises ConfigError for an unknown name, DatasetError when it is not built."""
    directory = Path(name)
    if "/" in name or (directory / FILE_NAME).is_file():
        if not (directory / FILE_NAME).is_file():
            raise DatasetError(f"{directory} is no built dataset: it has no {FILE_NAME}")
        return directory.absolute()
    study = load_study(study_path, site)
    needs = dataset_needs(study, check_name(study, name))
    if needs.root is None:
        raise DatasetError(
            f"dataset {name!r} of study {study.name!r} is not built, or its receipt in {study.build_dir(name)} cannot be read; "
            f"`slipway dataset build {name}` builds it"
        )
    return needs.root


def check_name(study: Study, name: str) -> str:
    """`name`, if it is a dataset of the study. Raises ConfigError."""
    if name not in study.datasets:
        raise ConfigError(f"study {study.name!r} has no dataset {name!r}; {choices(name, study.datasets)}")
    return name
