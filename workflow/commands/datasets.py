"""Which dataset a word on the command line means: a name of the study, or the directory of a built one."""

from __future__ import annotations

from pathlib import Path

from base.errors import ConfigError, DatasetError
from base.names import choices
from data_prep.cache.layout import DATASET
from data_prep.manifest import FILE_NAME
from workflow.commands.told_study import told_study
from workflow.dag.requirements import dataset_needs
from workflow.study.cell import NO_DATASET
from workflow.study.site import Site
from workflow.study.site_file import load_site
from workflow.study.study import Study


def dataset_root(study_path: Path, site: str | None, name: str) -> Path:
    """The directory of the built dataset. Raises ConfigError for an unknown name, DatasetError when it is not built."""
    return dataset_and_site(study_path, site, name)[0]


def dataset_and_site(study_path: Path, site: str | None, name: str) -> tuple[Path, Site]:
    """The same, and the site: the study's, where the dataset is one of a study."""
    directory = Path(name)
    if "/" in name or (DATASET.fullmatch(name) and (directory / FILE_NAME).is_file()):
        if not (directory / FILE_NAME).is_file():
            raise DatasetError(f"{directory} is not a built dataset: it has no {FILE_NAME}")
        return directory.absolute(), load_site(site)
    study = told_study(study_path, site)
    needs = dataset_needs(study, check_name(study, name))
    if needs.root is None:
        raise DatasetError(
            f"dataset {name!r} of study {study.name!r} is not built, or its receipt in {study.build_dir(name)} cannot be read; "
            f"`{study.command('dataset', 'build', name, '--study', str(study.path))}` builds it"
        )
    return needs.root, study.site


def check_name(study: Study, name: str) -> str:
    """`name`, if it is a dataset of the study. Raises ConfigError."""
    known = [known for known, spec in study.datasets.items() if spec.source != NO_DATASET]
    if name not in known:
        raise ConfigError(f"study {study.name!r} has no dataset {name!r}; {choices(name, known) if known else 'it needs none'}")
    return name
