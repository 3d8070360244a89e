"""`slipway dataset build`: what snakemake's dataset rules do, without snakemake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.logs import private_umask
from base.units import and_more, format_size
from data_prep.build.dataset import build_dataset
from data_prep.build.dataset_file import DATASET_FILE
from data_prep.space import limit_own_memory
from data_prep.tree.plan import read_left_out
from workflow.commands.datasets import check_name
from workflow.commands.told_study import told_study
from workflow.commands.watching import show
from workflow.commands.watching.progress import progress
from workflow.study.cell import datasets_of

MOST_LEFT_OUT: Final = 10
BUILT: Final = "; it was built before, and its source was not looked at: `--fresh` builds it anew"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How to build: processes at a time; whether a damaged image refuses the dataset; whether to start from nothing."""

    jobs: int
    strict: bool = False
    fresh: bool = False


def main(study_path: Path, site: str | None, names: Sequence[str], how: Wanted) -> None:
    """Build the datasets `names`, or all that the study's cells use."""
    limit_own_memory()
    study = told_study(study_path, site)
    private_umask(group=study.site.shared == "group")
    wanted = [check_name(study, name) for name in names] or datasets_of(study.cells)
    if not wanted:
        show.line(f"no cell of {study.name} has a dataset: there is nothing to build")
    for name in wanted:
        spec = study.datasets[name]
        is_built = not how.fresh and not spec.is_tree and (study.build_dir(name) / DATASET_FILE).exists()
        if how.strict and not spec.is_tree and not spec.strict:
            # `strict` is part of the specification, and so of the name under which runs look for the dataset: first see that it is refused
            # or not, then build what the study asks for, which has the same content
            with progress(f"dataset {name}, strictly", "samples") as callback:
                build_dataset(spec.model_copy(update={"strict": True}), name, study.datasets_dir, how.jobs, callback, fresh=how.fresh)
        with progress(f"dataset {name}", "bytes" if spec.is_tree else "samples") as callback:
            built = build_dataset(spec, name, study.datasets_dir, how.jobs, callback, fresh=how.fresh)
        samples = "" if built.samples is None else f"{built.samples} samples, "
        show.line(f"{name}: {samples}{format_size(built.bytes)} in {study.datasets_dir / built.path}{BUILT * is_built}")
        if spec.is_tree:
            _say_left_out(read_left_out(study.build_dir(name)))


def _say_left_out(left_out: Sequence[tuple[str, str]]) -> None:
    """Entries of a tree that are no data."""
    for entry, reason in left_out[:MOST_LEFT_OUT]:
        show.line(f"  left out: {entry}: {reason}")
    if more := and_more(len(left_out), MOST_LEFT_OUT):
        show.line(f"  ... {more}")
