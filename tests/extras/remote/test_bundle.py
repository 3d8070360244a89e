"""What of a study goes up."""

from pathlib import Path

import pytest

from base.errors import ConfigError
from extras.remote.bundle import digest_of, make_bundle

STUDY = """study: tiny
datasets: {{noise: {{source: synthetic}}{dataset}}}
programs:
  mine: {{{program}}}
"""


def study_in(folder: Path, program: str = "folder: code", dataset: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("print()\n")
    (folder / "code" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "code" / "run.sh").chmod(0o755)
    file = folder / "s.yaml"
    file.write_text(STUDY.format(program=program, dataset=dataset))
    return file


def names(tree: Path) -> list[str]:
    return sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())


def test_the_file_and_the_folders_of_its_programs_go_up(tmp_path: Path) -> None:
    study = study_in(tmp_path / "a b")
    (study.parent / "other.txt").write_text("stays")
    bundle = make_bundle(study, tmp_path / "tree")
    assert names(bundle.tree) == ["code/run.sh", "code/train.py", "s.yaml"]
    assert (bundle.name, bundle.file) == ("tiny", "s.yaml")
    assert (bundle.tree / "s.yaml").read_text() == study.read_text()


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    study = study_in(tmp_path / "one")
    first = make_bundle(study, tmp_path / "tree1")
    assert digest_of(first.tree) == first.digest == make_bundle(study_in(tmp_path / "two"), tmp_path / "tree2").digest
    (study.parent / "code" / "train.py").write_text("print(1)\n")
    assert make_bundle(study, tmp_path / "tree3").digest != first.digest


MOUNTS = "folder: /cluster/code, mounts: [{source: words.txt, target: /words}, {source: ~/big, target: /big}]"


@pytest.mark.parametrize(
    ("program", "beside", "goes_up"),
    [("folder: .", "site.yaml", ["code/run.sh", "code/train.py", "s.yaml"]), (MOUNTS, "words.txt", ["s.yaml", "words.txt"])],
    ids=["the folder of the study itself without its site", "a mount and not what the cluster has"],
)
def test_what_a_program_names_goes_up(tmp_path: Path, program: str, beside: str, goes_up: list[str]) -> None:
    study = study_in(tmp_path / "one", program=program)
    (study.parent / beside).write_text("storage: /laptop\n")
    assert names(make_bundle(study, tmp_path / "tree").tree) == goes_up


def test_a_relative_file_of_parameters_goes_up(tmp_path: Path) -> None:
    (tmp_path / "start.safetensors").write_bytes(b"numbers")
    study = tmp_path / "s.yaml"
    study.write_text(
        "axes: {parameters: [seed, a-run-r1, start.safetensors, /far/x.safetensors]}\nbase: {args: {parameters: y.safetensors}}\n"
    )
    assert names(make_bundle(study, tmp_path / "tree").tree) == ["s.yaml", "start.safetensors"]
    study.write_text("zip: [{parameters: gone.safetensors}]\n")
    with pytest.raises(ConfigError, match=r"s.yaml:1: zip\[0\].parameters: found 'gone.safetensors', and .* is not there"):
        make_bundle(study, tmp_path / "tree-2")


@pytest.mark.parametrize(
    ("program", "dataset", "words"),
    [
        ("folder: ../code", "", "lies outside of"),
        ("folder: code/../../code", "", "lies outside of"),
        ("folder: gone", "", "is not there"),
        ("folder: link", "", "is a link"),
        ("folder: code, python: ../env/bin/python", "", "lies outside of"),
        ("folder: code", ", photos: {source: folder, path: photos}", "do not travel"),
        ("folder: code", ", photos: {source: folder, path: /p, splits: {test: {path: t}}}", "splits.test.path"),
    ],
)
def test_what_cannot_go_up_is_refused(tmp_path: Path, program: str, dataset: str, words: str) -> None:
    study = study_in(tmp_path / "one", program, dataset)
    (study.parent / "link").symlink_to("code")
    with pytest.raises(ConfigError, match=words) as refused:
        make_bundle(study, tmp_path / "tree")
    assert "s.yaml" in str(refused.value) or words == "is a link"


def test_what_is_huge_is_refused(tmp_path: Path) -> None:
    study = study_in(tmp_path / "one")
    with (study.parent / "code" / "data.bin").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="has more than"):
        make_bundle(study, tmp_path / "tree")
