"""How to reproduce: what the page says of study file, site and commit. The commands run in tests/workflow/test_reproduce.py."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.program_folder import copy, look_at
from extras.verify.runs import program_digests, verify_runs, why_not_kept
from tests.workflow.report.builder import analysed, collected, make_cell, make_record, write_records, write_study
from workflow.report.analysis import Analysis
from workflow.report.page import page
from workflow.report.provenance import Block, reproduction

STUDIES = (
    "# a comment\nstudy: x   # and another\n",
    "no newline at the end",
    "END_OF_FILE\nEND_OF_FILE_\n$(touch hacked) `touch hacked` $HOME \\ ' \" \n",
    "größe: 日本\n\ttab\n",
    "</code></pre><script>alert(1)</script>&amp;\n",
)


def analysis(place: Path, **record: Any) -> Analysis:
    return collected(place, [make_record(make_cell(), 1, **record)], repeats=1)


def with_site(place: Path, site: dict[str, Any], **record: Any) -> Analysis:
    analysis(place, **record)
    content = json.loads((place / "study.json").read_text())
    (place / "study.json").write_text(json.dumps({**content, "site": site}))
    return analysed(place)


def block(blocks: tuple[Block, ...], title: str) -> Block:
    return next(one for one in blocks if one.title.startswith(title))


@pytest.mark.processes
@pytest.mark.parametrize("typed", STUDIES)
def test_the_study_file_comes_back_as_it_was_typed(tmp_path: Path, typed: str) -> None:
    place = tmp_path / "digits"
    found = analysis(place)
    (place / "study.yaml").write_text(typed)
    text = page(found, {})
    assert text.count("<script") == 1
    codes = [html.unescape(code) for code in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)]
    (code,) = [code for code in codes if code.startswith("cat > study.yaml")]
    subprocess.run(["bash", "-e", "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "study.yaml").read_text() == (typed if typed.endswith("\n") else f"{typed}\n")
    assert not (tmp_path / "hacked").exists()


def test_a_link_in_the_place_of_the_stored_file_shows_nothing_of_the_readers(tmp_path: Path) -> None:
    """The results may be another's, who cannot read what the reader can."""
    found = analysis(tmp_path / "digits")
    (tmp_path / "private").write_text("my own words")
    (tmp_path / "digits" / "study.yaml").unlink()
    assert "The study file was not stored" in page(found, {})
    (tmp_path / "digits" / "study.yaml").symlink_to(tmp_path / "private")
    assert "my own words" not in page(found, {})


def test_the_runs_of_a_cluster_need_storage_of_their_own(tmp_path: Path) -> None:
    blocks = reproduction(with_site(tmp_path / "digits", {"name": "alps", "storage": "/scratch/x", "scheduler": "slurm"}))
    found = block(blocks, "Runs")
    assert found.code.startswith("slipway submit study.yaml --site alps --wait\n")
    assert "Give it other storage" in found.text


def test_the_built_in_site_needs_no_file(tmp_path: Path) -> None:
    site = {
        "name": "local",
        "storage": "/home/x/.slipway/storage",
        "cache": {"path": "/c", "max_bytes": None},
        "device": "cpu",
        "queue": None,
    }
    blocks = reproduction(with_site(tmp_path / "digits", site))
    assert block(blocks, "Runs").code.startswith("slipway run study.yaml --site local\n")
    assert not block(blocks, "Runs").text


@pytest.mark.parametrize(
    ("provenance", "code", "words"),
    [
        ({}, "git checkout --quiet ced9e06\nmake", "In a fresh clone"),
        ({"provenance.git_dirty": True}, "git checkout", "changes that are in no commit"),
        ({"provenance.git_sha": None}, "make", "installed version 0.1.0"),
        ({"provenance.git_sha": "x; rm -rf /"}, "git checkout --quiet 'x; rm -rf /'\n", "In a fresh clone"),
    ],
)
def test_the_commit_is_told_as_far_as_it_is_known(tmp_path: Path, provenance: dict[str, Any], code: str, words: str) -> None:
    found = block(reproduction(analysis(tmp_path / "digits", **provenance)), "Slipway as it was")
    assert found.code.startswith(code)
    assert words in found.text


def test_two_studies_have_files_of_their_own(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("alpha", "omega")]
    for place in places:
        record = {**make_record(make_cell(), 1), "study": place.name}
        write_records(write_study(place, [make_cell()], repeats=1, study=place.name), [record])
    codes = "\n".join(one.code for one in reproduction(analysed(*places)))
    assert all(f"cat > study{number}.yaml" in codes and f"slipway run study{number}.yaml" in codes for number in (1, 2))


# The files of programs beside the results: `slipway verify` compares them, and the page says how to get them back.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "studies" / "train"
    path.mkdir(parents=True)
    (path / "train.py").write_text("print(1)\n")
    return path


@pytest.fixture
def results(folder: Path, tmp_path: Path) -> Path:
    """Of a study with one program, of which two runs had the folder as it is, and one another state that was not kept."""
    program = {"name": "gpt", "folder": str(folder), "command": ["true"]}
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


def kept_block(results: Path) -> Block:
    return next(one for one in reproduction(analysed(results)) if one.title == "The programs")


def test_a_table_over_runs_of_different_files_is_marked(results: Path) -> None:
    assert [comparison.marks & {"program"} for comparison in analysed(results).primary] == [{"program"}]
    shutil.rmtree(results / "runs" / f"{make_cell()['cell_id']}-r3")
    assert [comparison.marks & {"program"} for comparison in analysed(results).primary] == [set()]


@pytest.mark.processes
def test_the_commands_of_the_page_bring_the_files_back_that_ran(results: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text("print(2)\n")
    clone = tmp_path / "clone"
    clone.mkdir()
    subprocess.run(["bash", "-e", "-c", kept_block(results).code], cwd=clone, check=True)
    digest = look_at(clone / "train").digest
    assert (results / "programs" / digest).is_dir()
    assert f"gpt had several states: {digest[:12]} (2 runs, here), ffffffffffff (1 run)" in kept_block(results).text


def test_what_lies_elsewhere_or_is_not_there_is_told_in_words_and_nothing_is_written(results: Path) -> None:
    study = json.loads((results / "study.json").read_text())
    study["history"][0]["path"] = "/elsewhere/study.yaml"
    (results / "study.json").write_text(json.dumps(study))
    found = kept_block(results)
    assert found.code == ""
    assert f"Let `folder` of the program gpt in the study file be {results / 'programs'}" in found.text
    shutil.rmtree(results / "programs")
    assert "The files of gpt are missing" in kept_block(results).text


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
