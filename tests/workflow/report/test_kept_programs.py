"""The files of programs beside the results: `slipway verify` compares them, and the page says how to get them back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.program_folder import copy, look_at
from tests.workflow.report.builder import make_cell, make_record, write_records, write_study
from workflow.report.analysis import analyse
from workflow.report.collect import collect
from workflow.report.provenance import Block
from workflow.report.reproduce import program_digests, reproduction, why_not_kept
from workflow.report.verify import verify_runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "studies" / "train"
    path.mkdir(parents=True)
    (path / "train.py").write_text("print(1)\n")
    return path


@pytest.fixture
def results(folder: Path, tmp_path: Path) -> Path:
    """Of a study with one program, of which two runs had the folder as it is, and one another state that was not kept."""
    program = {"name": "gpt", "folder": str(folder), "command": ["true"], "launcher": "ranks", "python": "python3"}
    program |= {"env": {}, "mounts": [], "version": 1, "checkpoint": False}
    cell = {**make_cell(), "framework": "gpt", "model": "gpt", "program": program}
    directory = write_study(tmp_path / "results" / "digits", [cell], repeats=3)
    study = json.loads((directory / "study.json").read_text())
    study["history"] = [{"sha256": "0" * 64, "path": str(folder.parent / "study.yaml"), "time": "2026-11-23T00:00:00+00:00"}]
    (directory / "study.json").write_text(json.dumps(study))
    digest = look_at(folder).digest
    write_records(directory, [make_record(cell, repeat, **{"provenance.program_digest": digest}) for repeat in (1, 2)])
    write_records(directory, [make_record(cell, 3, **{"provenance.program_digest": "f" * 64})])
    (directory / "programs").mkdir()
    copy(folder, digest, directory / "programs" / digest)
    return directory


def block(results: Path) -> Block:
    return next(one for one in reproduction(analyse(collect([results]))) if one.title == "The programs")


def test_a_table_over_runs_of_different_files_is_marked(results: Path) -> None:
    assert [comparison.marks & {"program"} for comparison in analyse(collect([results])).primary] == [{"program"}]
    shutil.rmtree(results / "runs" / f"{make_cell()['cell_id']}-r3")
    assert [comparison.marks & {"program"} for comparison in analyse(collect([results])).primary] == [set()]


@pytest.mark.processes
def test_the_commands_of_the_page_bring_the_files_back_that_ran(results: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text("print(2)\n")
    clone = tmp_path / "clone"
    clone.mkdir()
    subprocess.run(["bash", "-e", "-c", block(results).code], cwd=clone, check=True)
    digest = look_at(clone / "train").digest
    assert (results / "programs" / digest).is_dir()
    assert f"gpt had several states: {digest[:12]} (2 runs, here), ffffffffffff (1 run)" in block(results).text


def test_what_lies_elsewhere_or_is_not_there_is_told_in_words_and_nothing_is_written(results: Path) -> None:
    study = json.loads((results / "study.json").read_text())
    study["history"][0]["path"] = "/elsewhere/study.yaml"
    (results / "study.json").write_text(json.dumps(study))
    found = block(results)
    assert found.code == ""
    assert f"Let `folder` of the program gpt in the study file be {results / 'programs'}" in found.text
    shutil.rmtree(results / "programs")
    assert "That of gpt is not there" in block(results).text


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda place: None, ""),
    "gone": (shutil.rmtree, "it is missing"),
    "a link": (lambda place: place.rename(place.with_name("x")).parent.joinpath(place.name).symlink_to("x"), "a link, and nobody of ours"),
    "a file of it": (lambda place: (place / "more.py").write_text(""), "its files are not those that ran"),
    "a link in it": (lambda place: (place / "more.py").symlink_to("/etc/passwd"), "more.py is a link"),
}


@pytest.mark.processes
@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_names_files_that_are_not_those_that_ran(results: Path, damage: str) -> None:
    place = next((results / "programs").iterdir())
    DAMAGE[damage][0](place)
    findings = [one for one in verify_runs(results).findings if str(results / "programs") in one]
    (other,) = [one for one in findings if "f" * 64 in one]
    assert "it is missing: the files that the program had" in other
    assert [DAMAGE[damage][1] in one for one in findings if one != other] == [True] * (damage != "nothing")


def test_files_that_everybody_may_write_to_are_compared_all_the_same(results: Path) -> None:
    place = next((results / "programs").iterdir())
    (place / "train.py").chmod(0o666)
    assert why_not_kept(str(place), place.name) is None


@pytest.mark.parametrize("digest", [None, 3, "../../../etc", "f" * 64 + "\n", "F" * 64])
def test_what_is_no_digest_leads_nowhere(digest: object) -> None:
    assert list(program_digests({"provenance": {"program_digest": digest}})) == []
