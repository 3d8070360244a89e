"""What a shell completes, and that nothing is imported for it that takes longer than a typist waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.commands.conftest import House
from workflow.commands import completion

ROOT = Path(__file__).parents[3]


def complete(words: list[str], where: Path, **environ: str) -> list[str]:
    """As the script does that `slipway --install-completion` gives to bash."""
    asked = {"_SLIPWAY_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(["slipway", *words]), "COMP_CWORD": str(len(words))}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **asked, **environ}
    argv = [sys.executable, "-m", "workflow.commands.main"]
    return subprocess.run(argv, cwd=where, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()


def test_studies_are_yaml_files_and_the_ways_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.yaml", "about.yml", "a.txt", ".hidden.yaml"):
        (tmp_path / name).write_text("")
    (tmp_path / "around").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completion.studies("a") == ["a.yaml", "about.yml", "around/"]
    assert completion.studies("./ab") == ["./about.yml"]
    assert completion.studies("nowhere/x") == []


def test_sites_by_name_or_path(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completion.sites("") == sorted(completion.sites(""))
    assert {"local", "example-slurm"} <= set(completion.sites(""))
    assert completion.sites("example-sl") == ["example-slurm"]
    monkeypatch.chdir(house.root)
    assert completion.sites("./he") == ["./here.yaml"]


def test_runs_of_the_study_and_the_site_that_were_typed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    study = house.study()
    name = study.runs[0].run_id
    house.record(name, "ok")
    options = {"study": house.path, "site": str(house.site)}
    assert completion.runs(options, {}, name[:3]) == [name]
    assert completion.runs({"study": house.path}, {"SLIPWAY_SITE": str(house.site)}, "") == [name]
    assert completion.runs(options, {}, "other") == []
    house.site.write_text("storage: $SOMEWHERE/storage\ncache: {path: cache}\n")
    monkeypatch.setenv("SOMEWHERE", str(house.root))
    assert completion.runs(options, {}, "") == [name]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(house.root / "config"))
    assert completion.runs({"study": house.path}, {}, "") == [name], "without a site the results are in `storage` beside the study"
    sites = house.root / "config" / "slipway" / "sites"
    sites.mkdir(parents=True)
    house.site.rename(sites / "default.yaml")
    assert completion.runs({"study": house.path}, {}, "") == [name]


@pytest.mark.parametrize("text", ["", "[", "study: [1]", "- a", "study: x\0"])
def test_what_cannot_be_read_completes_to_nothing(house: House, text: str) -> None:
    house.path.write_text(text)
    assert completion.runs({"study": house.path, "site": str(house.site)}, {}, "") == []
    house.site.unlink()
    os.mkfifo(house.site)
    assert completion.runs({"study": house.path, "site": str(house.site)}, {}, "") == []
    house.site.unlink()
    assert completion.runs({"study": house.path, "site": str(house.site)}, {}, "") == []


@pytest.mark.processes
def test_a_shell_is_answered(house: House) -> None:
    name = house.load().runs[0].run_id
    house.record(name, "ok")
    for command in ("plan", "run", "tables"):
        assert complete([command, house.path.name[:4]], house.root) == [house.path.name]
    assert complete(["plan", "--site", "example-sl"], house.root) == ["example-slurm"]
    assert complete(["plan", "--ce"], house.root) == ["--cell"]
    for other in (["plan", "--cell"], ["run", "--retry"], ["export"]):
        assert not any(complete([*other, house.path.name[:4]], house.root)), "not a study"
    assert complete(["dataset", "st"], house.root) == ["stage"]
    assert complete(["remote", "gate", "se"], house.root) == ["session", "setup"]
    assert complete(["logs", "--study", house.path.name, "--site", "here.yaml", name[:4]], house.root) == [name]


@pytest.mark.processes
def test_nothing_heavy_is_imported() -> None:
    heavy = {"pydantic", "numpy", "polars", "torch", "lmdb", "PIL", "cv2", "snakemake"}
    code = f"import sys\nfrom workflow.commands import completion, main\nprint(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout == "\n"
