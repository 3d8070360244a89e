"""The folder of a user's program: what is taken along, and that every copy is of one state."""

import os
import socket
from pathlib import Path

import pytest

from base.errors import ConfigError, StagingError
from containers import program_folder
from containers.program_folder import copy, look_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "train"
    (path / "net").mkdir(parents=True)
    (path / "train.py").write_text("print(1)\n")
    (path / "net" / "run.sh").write_text("#!/bin/sh\n")
    (path / "net" / "run.sh").chmod(0o755)
    return path


def test_a_copy_has_the_digest_and_may_not_be_written_to(folder: Path, tmp_path: Path) -> None:
    found = look_at(folder)
    assert (found.files, found.bytes) == (2, 19)
    copy(folder, found.digest, tmp_path / "copy")
    assert look_at(tmp_path / "copy") == found
    assert (tmp_path / "copy" / "train.py").stat().st_mode & 0o777 == 0o444
    assert (tmp_path / "copy" / "net" / "run.sh").stat().st_mode & 0o777 == 0o555


def test_without_a_folder_the_copy_is_empty(tmp_path: Path) -> None:
    copy(None, None, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_what_is_no_program_does_not_count(folder: Path) -> None:
    before = look_at(folder)
    for name in (".git", "__pycache__", ".venv"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    assert look_at(folder) == before


def test_results_beside_a_study_in_the_folder_are_no_part_of_it(folder: Path) -> None:
    (folder / "storage").mkdir()
    (folder / "storage" / "disk.py").write_text("")
    before = look_at(folder)
    assert before.files == 3, "a folder of that name may be the program's"
    (folder / "storage" / "disk.py").unlink()
    for name, inner in (("storage", "results"), ("cache", "datasets")):
        (folder / name / inner).mkdir(parents=True)
        (folder / name / inner / "file").write_text("x")
    assert look_at(folder).files == 2


@pytest.mark.parametrize("change", ["content", "name", "executable", "more"])
def test_any_change_is_another_digest_and_no_copy(folder: Path, tmp_path: Path, change: str) -> None:
    before = look_at(folder).digest
    {
        "content": lambda: (folder / "train.py").write_text("print(2)\n"),
        "name": lambda: (folder / "train.py").rename(folder / "other.py"),
        "executable": lambda: (folder / "train.py").chmod(0o755),
        "more": lambda: (folder / "new.py").write_text(""),
    }[change]()
    assert look_at(folder).digest != before
    with pytest.raises(StagingError, match="has changed since the run began"):
        copy(folder, before, tmp_path / "copy")


def test_links_and_what_is_no_file_are_refused_by_name(folder: Path) -> None:
    (folder / "data").symlink_to("/nowhere")
    with pytest.raises(ConfigError, match="train/data is a link"):
        look_at(folder)
    (folder / "data").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="train/pipe is no regular file"):
        look_at(folder)
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "s"))
        with pytest.raises(ConfigError, match="train/s is no regular file"):
            look_at(folder)


def test_what_everybody_can_write_or_a_stranger_owns_is_not_executed(folder: Path) -> None:
    (folder / "train.py").chmod(0o666)
    with pytest.raises(ConfigError, match=r"train/train.py may be written by everybody, and it would be executed as yours"):
        look_at(folder)


def test_links_to_what_is_left_out_are_left_out_too(folder: Path) -> None:
    before = look_at(folder)
    (folder / ".venv").symlink_to("/usr")
    assert look_at(folder) == before


def test_a_folder_that_is_too_large_for_code_is_refused_before_it_is_read(folder: Path) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(program_folder.MAX_BYTES + 1)
    with pytest.raises(ConfigError, match="more than 5000 files or 67.1 MB, found at data.bin: a program's folder is for code"):
        look_at(folder)


def test_a_forest_of_empty_directories_is_no_program(folder: Path) -> None:
    for number in range(program_folder.MAX_FILES + 1):
        (folder / str(number)).mkdir()
    with pytest.raises(ConfigError, match="more than 5000 directories: a program's folder is for code"):
        look_at(folder)


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere of the program's folder cannot be read: No such file"):
        look_at(tmp_path / "nowhere")
