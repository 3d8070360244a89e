"""`slipway init`: what it writes is good as it is, and nothing is ever overwritten."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from cluster.installation import SCHEMAS
from containers.models import MODELS
from data_prep.spec import SourceKind
from tests.workflow.commands.conftest import FOREIGN
from workflow.commands import init, main
from workflow.commands.chosen_study import whole_commands
from workflow.study.study import load_study


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.processes
@pytest.mark.parametrize("template", get_args(init.Template))
def test_each_template_passes_the_plan_and_brings_what_it_needs(template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "mine"
    assert main.run(["init", str(place), "--template", template]) == 0
    written = [line.removeprefix("written: ") for line in capsys.readouterr().out.splitlines() if line.startswith("written: ")]
    assert written == [str(place / name) for name in ("study.yaml", "site.yaml", *init.BESIDE.get(template, {}))]
    assert main.run(["plan", str(place / "study.yaml")]) == 0
    said = capsys.readouterr()
    assert f"results: {place}/storage/results/mine" in said.out
    assert "note:" not in said.out + said.err


def test_an_unknown_template_is_answered_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["init", str(tmp_path / "x"), "--template", "vision"]) == 2
    said = capsys.readouterr().err
    assert "Invalid value for '--template': 'vision' is not one of 'images', " in said
    assert all(template in said for template in get_args(init.Template))
    assert not (tmp_path / "x").exists()


def test_the_next_command_is_told_and_the_study_has_the_name_of_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "new" / "My Study"
    assert main.run(["init", str(place)]) == 0
    said = capsys.readouterr().out
    assert shlex.join(["slipway", "plan", f"{place}/study.yaml"]) in said
    assert said.endswith("--template my-script | language-model | inference\n")
    study = load_study(place / "study.yaml", str(place / "site.yaml"), {})
    assert (study.name, study.notes, study.site.storage) == ("my-study", (), place / "storage")
    text = (place / "study.yaml").read_text()
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMAS}/study.schema.json\n")
    assert "marked `short` if fewer than 100 or under 30 s" in text
    assert {*get_args(SourceKind), *MODELS} - set(re.findall(r"[a-z0-9-]+", text)) == set()
    listed = text.partition("Other sources of images: ")[2].partition(" none: no dataset")[0]
    assert set(re.findall(r"[a-z][a-z-]+", listed)) - {*get_args(SourceKind)} == {"of", "token", "sequences", "tree", "as", "it", "is"}


@pytest.mark.processes
def test_the_site_file_beside_a_study_is_taken_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["init", str(tmp_path)]) == 0
    capsys.readouterr()
    study = str(tmp_path / "study.yaml")
    assert main.run(["plan", study]) == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"site: {tmp_path}/site.yaml, beside the study\n")
    assert f"site {tmp_path}/site.yaml: scheduler local" in said.out
    assert f"results: {tmp_path}/storage/results/" in said.out
    assert f"--site {tmp_path}/site.yaml" in said.out
    assert main.run(["plan", study, "--site", "local"]) == 0
    assert "beside the study" not in capsys.readouterr().err
    assert main.run(["tables", study]) == 19
    said = capsys.readouterr()
    assert f"`slipway run {study} --site {tmp_path}/site.yaml` runs it" in said.err


@pytest.mark.parametrize("there", ["study.yaml", "site.yaml"])
def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / there).symlink_to("nowhere")
    assert main.run(["init", str(tmp_path)]) == 10
    assert f"{there} is there already, and is not overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("", "is no name of a directory"),
        ("file", "nothing can be written in file: file: File exists"),
        ("file/x", "file/x: Not a directory"),
        ("/proc/x", "nothing can be written"),
    ],
)
def test_what_can_be_no_directory(
    tmp_path: Path, where: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main.run(["init", where]) == 10
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_template_whose_files_find_no_place_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train").symlink_to("nowhere")
    assert main.run(["init", str(tmp_path), "--template", "my-script"]) == 10
    assert f"{tmp_path}/train: File exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_a_message_about_a_study_that_cannot_be_looked_at_stays_as_it_is() -> None:
    """Its own error is being told: looking again must not put another in its place."""
    assert whole_commands("see `slipway status`", {"study": Path("x" * 300 + ".yaml")}, {}) == "see `slipway status`"
