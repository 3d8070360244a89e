"""A tree of files under a study: it is looked at before runs start, whose files its manifest must still speak of."""

from pathlib import Path

import pytest

from base.errors import ConfigError, DatasetError
from data_prep.build.dataset import build_dataset
from tests.data_prep.tree.corpus import SIZES, plant
from tests.workflow.study.studies import changed, write
from workflow.dag.cell_needs import requirements_of
from workflow.dag.refusals import refuse_runs
from workflow.study.study import Study, load_study

TOTAL = sum(SIZES.values())


def study_of(folder: Path) -> Study:
    """A program with a tree beside it, on storage of its own."""
    (folder / "site.yaml").write_text("storage: storage\ncache: {path: cache}\n")
    study = changed(
        datasets={"digits": {"source": "files", "path": "tree"}},
        programs={"gpt": {"command": ["ls", "{data}"]}},
        base={"program": "gpt"},
        axes={"model": None},
    )
    return load_study(write(folder, study), str(folder / "site.yaml"), {})


def test_its_bytes_are_known_before_it_is_hashed_and_its_files_after(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert requirements_of(study, "digits").bytes is None
    plant(tmp_path / "tree")
    needs = requirements_of(study, "digits")
    assert (needs.bytes, needs.bytes_are, needs.samples, needs.root, needs.files) == (TOTAL, "estimated", None, None, None)
    build_dataset(study.datasets["digits"], "digits", study.datasets_dir, 1)
    needs = requirements_of(study, "digits")
    assert (needs.bytes, needs.bytes_are, needs.most_train_samples) == (TOTAL, "built", None)
    assert [file.name for file in needs.files or ()] == sorted(SIZES)


@pytest.mark.processes
def test_a_tree_that_is_not_what_was_hashed_is_refused_before_anything_starts(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    with pytest.raises(ConfigError, match=r"study.yaml:\d+: datasets.digits.path: .*/tree does not exist on this machine"):
        refuse_runs(study, study.runs, {})
    plant(tmp_path / "tree")
    refuse_runs(study, study.runs, {})
    build_dataset(study.datasets["digits"], "digits", study.datasets_dir, 1)
    refuse_runs(study, study.runs, {})
    (tmp_path / "tree" / "z").write_bytes(b"another")
    with pytest.raises(DatasetError) as caught:
        refuse_runs(study, study.runs, {})
    assert (
        f"datasets.digits: {tmp_path}/tree is not what it was when it was listed: 1 file is new, gone or changed (z); put it back"
        in str(caught.value)
    )
    assert "`slipway dataset build digits --fresh --study " in str(caught.value)
    refuse_runs(study, [], {})
    (tmp_path / "tree").rename(tmp_path / "gone")
    with pytest.raises(DatasetError, match="tree cannot be looked at: No such file"):
        refuse_runs(study, study.runs, {})
