"""framework.yaml in the folder of a program: its keys are the program's, and stand in one place only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from tests.workflow.study.studies import changed, load
from workflow.study.cell import Cell
from workflow.study.study import Study

FILE = """\
launcher: ranks
command: ["{python}", "{folder}/train.py"]
env: [tf_config]
sidecars:
  - {name: store, where: head, command: [store]}
"""


def study_of(tmp_path: Path, file: str, **program: Any) -> Study:
    (tmp_path / "train").mkdir(exist_ok=True)
    (tmp_path / "train" / "train.py").touch()
    (tmp_path / "train" / "framework.yaml").write_text(file)
    study = changed(programs={"gpt": {"folder": "train", **program}}, base={"program": "gpt"}, axes={"model": None})
    return load(tmp_path, study)


def refused(tmp_path: Path, file: str, **program: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        study_of(tmp_path, file, **program)
    return str(caught.value).replace(str(tmp_path), "")


def test_keys_of_the_folder_are_those_of_the_program(tmp_path: Path) -> None:
    program = study_of(tmp_path, FILE, env={"A": "b"}).cells[0].program
    assert program is not None
    assert (program["launcher"], program["command"], program["env_from"]) == ("ranks", ("{python}", "{folder}/train.py"), ("tf_config",))
    assert (program["env"], program["sidecars"][0]["name"]) == ({"A": "b"}, "store")


def test_the_same_keys_in_the_study_make_the_same_cells(tmp_path: Path) -> None:
    found = study_of(tmp_path, FILE).cells
    keys = {"launcher": "ranks", "command": ["{python}", "{folder}/train.py"], "env_from": ["tf_config"]}
    sidecars = [{"name": "store", "where": "head", "command": ["store"]}]
    (tmp_path / "train" / "framework.yaml").unlink()
    study = changed(programs={"gpt": {"folder": "train", **keys, "sidecars": sidecars}}, base={"program": "gpt"}, axes={"model": None})
    assert load(tmp_path, study).cells == found


def test_env_as_a_mapping_is_what_it_is_in_a_study(tmp_path: Path) -> None:
    file = 'command: [a]\nlauncher: single\nenv: {A: "1"}\nenv_from: [dmlc]\n'
    program = study_of(tmp_path, file).cells[0].program
    assert program is not None
    assert (program["env"], program["env_from"]) == ({"A": "1"}, ("dmlc",))


def test_what_it_supports_and_its_packages_are_no_part_of_its_cells(tmp_path: Path) -> None:
    plain, *_ = study_of(tmp_path, FILE).cells
    supports = "supports: {modes: [train], models: [gpt], devices: [cpu], precision: [fp32], readers: [slipway]}\n"
    found, *_ = study_of(tmp_path, f"{FILE}{supports}packages: [numpy==1.0, torch]\n").cells
    assert found.cell_id == plain.cell_id
    assert found.program == {**(plain.program or {}), "packages": ("numpy==1.0", "torch")}
    assert Cell.from_json(found.to_json()).program == found.program


@pytest.mark.parametrize(
    ("file", "program", "words"),
    [
        (
            FILE,
            {"launcher": "single"},
            "/train/framework.yaml:1: launcher: found here and in /study.yaml:28: programs",
        ),
        (FILE, {"env_from": ["dmlc"]}, "/train/framework.yaml:3: env_from: found here and in /study.yaml:28: programs.gpt.env_from; valid"),
        (
            "command: [a]\nenv: [dmlc]\nenv_from: [dmlc]\n",
            {},
            "/train/framework.yaml:2: env: found a list, which is env_from",
        ),
        ("command: [a]\nlauncher: mpi\n", {}, "/train/framework.yaml:2: programs.gpt.launcher: found the text 'mpi'; "),
        ("command: [a]\nlaunch: ranks\n", {}, "/train/framework.yaml:2: programs.gpt.launch: unknown key; valid: "),
        ("command:\n  - a\n  - '{nowhere}'\n", {}, "/train/framework.yaml:3: programs.gpt.command[1]: found {nowhere}, which is not known"),
        ("launcher: ranks\n", {}, "/study.yaml:26: programs.gpt.command: this key is missing"),
        ("command: [a]\nfolder: .\n", {}, "/train/framework.yaml:2: folder: this file lies in the folder"),
        ("command: [a]\nfacts: {}\n", {}, "/train/framework.yaml:2: facts: this is a key of Slipway's own frameworks"),
        (
            "command: [a]\nsupports: {precision: [bf16, fp16]}\n",
            {},
            "program 'gpt' does not support precision 'fp32'; valid: bf16, fp16",
        ),
        (
            "command: [a]\nsupports: {cuda_only: {precision: [fp32]}}\n",
            {},
            "program 'gpt' supports precision 'fp32' on GPUs only, and the device is the CPU; valid: another one, or device: cuda",
        ),
        ("command: [a]\nsupports: {mode: [train]}\n", {}, "/train/framework.yaml:2: programs.gpt.supports.mode: unknown key"),
        ("command: [a]\npackages: ['torch>=2']\n", {}, "/train/framework.yaml:2: programs.gpt.packages[0]: found"),
        ("", {}, "/train/framework.yaml: the program file is empty"),
        ("- a\n", {}, "/train/framework.yaml:1: a program file is a mapping of keys to values; found a list"),
        ("a: [\n", {}, "/train/framework.yaml:2: this is not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path: Path, file: str, program: dict[str, Any], words: str) -> None:
    assert words in refused(tmp_path, file, **program)
