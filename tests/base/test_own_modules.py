"""A Python of ours finds our modules and those of the standard library, whatever lies in the directory that it is started in."""

import os
import site
from pathlib import Path

import pytest

from base import process
from base.calls import call_isolated
from base.errors import DatasetError, StorageError
from data_prep.build import dataset
from data_prep.sources import lmdb_file
from tests.base import in_children

HOSTILE = ("base", "cluster", "types", "queue", "json", "workflow", "data_prep")


def test_children_find_the_checkout_first_and_nothing_stands_before_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(process.CODE_ROOT)
    assert process.packages_environ({"PYTHONPATH": f"/mine:{root}:"}) == {"PYTHONPATH": f"{root}:/mine"}
    assert process.packages_environ({}) == {"PYTHONPATH": root}
    (tmp_path / "linked").symlink_to(process.CODE_ROOT)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "linked")])
    assert process.packages_environ({"PYTHONPATH": "/mine"}) == {}


def test_a_child_apart_is_told_of_the_rooms_as_all_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel, where site-packages must not stand before the standard library, nothing is said."""
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(process.CODE_ROOT)])
    monkeypatch.setenv("PYTHONPATH", f"/mine{os.pathsep}{process.CODE_ROOT}")
    assert call_isolated("looking", in_children.environment, "PYTHONPATH", timeout_s=60) == f"/mine{os.pathsep}{process.CODE_ROOT}"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a user's, with modules of ours and of the library's names."""
    directory = tmp_path / "mine"
    directory.mkdir()
    for name in HOSTILE:
        (directory / f"{name}.py").write_text(f"open({str(tmp_path)!r} + '/executed', 'a').write({name!r})\nraise SystemExit(9)\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.processes
def test_no_child_executes_what_lies_in_the_working_directory(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_isolated("taking", in_children.take, "it", timeout_s=60) == ["it", 3]

    with pytest.raises((DatasetError, StorageError), match="nowhere"):
        dataset.build_shards(hostile / "nowhere", [0], 1, lambda index, done: None)

    with lmdb_file.child("datum", hostile / "nowhere") as child:
        _, words = child.process.communicate(timeout=60)
    assert b"nowhere" in words, "its own words"
    assert not (hostile.parent / "executed").exists()
