"""The files of a program are kept beside the results, one whole copy of each state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from base.errors import StagingError, StorageError
from containers.program_folder import look_at
from workflow.run.plan import Framework, taken_along
from workflow.run.storage.description import DEAD_S, keep_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "train"
    (path / "net").mkdir(parents=True)
    (path / "train.py").write_text("print(1)\n")
    (path / "net" / "run.sh").write_text("#!/bin/sh\n")
    (path / "net" / "run.sh").chmod(0o755)
    return path


def described(folder: Path) -> Framework:
    return taken_along(Framework(name="gpt", own=True, folder=str(folder), launcher="ranks", command=("true",)))


def test_each_state_of_a_folder_is_kept_once_and_whole(folder: Path, tmp_path: Path) -> None:
    results, first = tmp_path / "results", described(folder)
    keep_program(results, first)
    keep_program(results, first)
    (folder / "train.py").write_text("print(2)\n")
    second = described(folder)
    keep_program(results, second)
    kept = {path.name: look_at(path).digest for path in (results / "programs").iterdir()}
    assert kept == {framework.digest: framework.digest for framework in (first, second)}


def test_what_changes_meanwhile_is_not_kept_under_a_wrong_name(folder: Path, tmp_path: Path) -> None:
    before = described(folder)
    (folder / "train.py").write_text("print(2)\n")
    with pytest.raises(StagingError, match="has changed since the run began"):
        keep_program(tmp_path, before)
    assert list((tmp_path / "programs").iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "missing", "added", "a link", "a file"])
def test_a_copy_that_is_not_what_its_name_says_is_made_anew(folder: Path, tmp_path: Path, damage: str) -> None:
    results, framework = tmp_path / "results", described(folder)
    keep_program(results, framework)
    assert framework.digest is not None
    kept = results / "programs" / framework.digest
    if damage in ("a link", "a file"):
        elsewhere = kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(elsewhere) if damage == "a link" else kept.write_text("nothing")
    else:
        kept.chmod(0o755)
        (kept / "train.py").unlink(missing_ok=damage != "added")
        if damage == "changed":
            (kept / "train.py").write_text("print(3)\n")
        elif damage == "added":
            (kept / "train.py").write_text("print(1)\n")
            (kept / "more.py").write_text("")
    keep_program(results, framework)
    assert not kept.is_symlink()
    assert look_at(kept).digest == framework.digest
    if damage == "a link":
        assert look_at(tmp_path / "elsewhere").digest == framework.digest, "what a link points to is somebody else's"


def test_where_nothing_can_be_written_the_error_says_what_for_and_where(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "programs").write_text("")
    with pytest.raises(StorageError, match=r"the files of the program 'gpt' are kept beside the results, and .*/programs cannot be"):
        keep_program(tmp_path, described(folder))


def test_what_a_killed_supervisor_left_goes_and_what_another_one_writes_stays(folder: Path, tmp_path: Path) -> None:
    for name, age_s in (("dead", 2 * DEAD_S), ("alive", 0.0)):
        part = tmp_path / "programs" / f".{'a' * 64}.part-{name}"
        part.mkdir(parents=True)
        now = part.stat().st_mtime
        os.utime(part, (now - age_s, now - age_s))
    keep_program(tmp_path, described(folder))
    assert [path.name for path in (tmp_path / "programs").glob(".*")] == [f".{'a' * 64}.part-alive"]


def test_a_program_without_a_folder_leaves_nothing(tmp_path: Path) -> None:
    keep_program(tmp_path, taken_along(Framework(name="gpt", own=True, folder="", launcher="ranks", command=("true",))))
    assert list(tmp_path.iterdir()) == []
