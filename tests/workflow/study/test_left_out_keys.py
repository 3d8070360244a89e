"""Keys that came later are written only where a study has them: without, ids and files are those of earlier versions."""

import hashlib
from pathlib import Path

from base.jsonfile import canonical_json
from tests.workflow.study.studies import changed, load
from workflow.study.cell import LEFT_OUT, Cell, Run
from workflow.study.series import keys_not_in_ids, words_of

BEFORE = "90034bece44490fa9281b11566a678a3947ceacb0ef0cfe3ba856e6e7b0eea5a"
"""SHA-256 of the cells of SMALL as the version before these keys wrote them."""


def test_a_study_without_the_keys_is_written_as_before(tmp_path: Path) -> None:
    study = load(tmp_path, changed())
    assert hashlib.sha256(canonical_json([cell.to_json() for cell in study.cells])).hexdigest() == BEFORE
    stated = load(tmp_path, changed(base=dict(LEFT_OUT)))
    assert [cell.to_json() for cell in stated.cells] == [cell.to_json() for cell in study.cells]


def test_a_cell_with_the_keys_is_another_one_and_is_read_back(tmp_path: Path) -> None:
    plain = load(tmp_path, changed()).cells
    study = load(tmp_path, changed(axes={"input_gradient": [False, True], "nodes": [1], "batch_size": [32]}))
    off, on = study.cells
    assert off.cell_id in {cell.cell_id for cell in plain}
    assert on.cell_id not in {cell.cell_id for cell in plain}
    assert [cell.to_json().get("input_gradient") for cell in (off, on)] == [None, True]
    assert [Cell.from_json(cell.to_json()) for cell in study.cells] == list(study.cells)
    words = words_of(study.cells, study.site, 1)
    assert [words(Run(cell=cell, repeat=1)) for cell in study.cells] == [
        f"lenet, input gradient {value}, batch 32, 1 node" for value in ("False", "True")
    ]
    assert list(keys_not_in_ids(study.cells).values()) == ["input gradient False", "input gradient True"]


def test_a_program_may_be_told_to_choose_algorithms(tmp_path: Path) -> None:
    programs = {"mine": {"command": ["my-train"], "supports": {"conv_algorithm": ["auto", "measured"]}}}
    study = changed(programs=programs, base={"program": "mine", "conv_algorithm": "measured"}, axes={"model": None})
    assert {cell.conv_algorithm for cell in load(tmp_path, study).cells} == {"measured"}
