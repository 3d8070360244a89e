"""`profile: true`: per cell one run more, of its own, which changes nothing of the others."""

from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from tests.workflow.study.studies import changed, load, write
from workflow.study.cell import Cell, profile_of, profile_run
from workflow.study.publishing import find_run, parse_resolved, resolved_study
from workflow.study.series import words_of
from workflow.study.study import load_study

PROGRAM = {"folder": ".", "command": ["{python}", "{folder}/train.py"]}


def test_a_study_without_the_key_is_resolved_as_it_was(tmp_path: Path) -> None:
    resolved = resolved_study(load(tmp_path, changed()))
    assert resolved == resolved_study(load(tmp_path, changed(profile=False)))
    assert "profile" not in str(resolved)


def test_each_cell_has_one_run_more_behind_the_measured_ones(tmp_path: Path) -> None:
    before, study = load(tmp_path, changed()), load(tmp_path, changed(profile=True))
    assert study.cells == before.cells
    assert study.runs[: len(before.runs)] == before.runs
    more = study.runs[len(before.runs) :]
    assert [run.run_id for run in more] == [f"{cell.cell_id}-profile-r1" for cell in study.cells]
    assert [run.cell.measured_id for run in more] == [cell.cell_id for cell in study.cells]
    words = words_of(study.cells, study.site, study.repeats)
    assert words(more[0]) == words(before.runs[0]).split(", batch")[0] + ", batch 32, 1 node, profile"


def test_the_command_asks_for_profiles_where_the_file_does_not(tmp_path: Path) -> None:
    path = write(tmp_path, changed())
    assert load_study(path, "local", {}, profile=True).runs == load(tmp_path, changed(profile=True)).runs


def test_a_run_finds_the_cell_of_its_profile_in_study_json(tmp_path: Path) -> None:
    study = load(tmp_path, changed(profile=True))
    found = find_run(parse_resolved({**resolved_study(study), "history": []}, tmp_path), study.runs[-1].run_id)
    assert found == profile_run(study.cells[-1])
    assert Cell.from_json(found.cell.to_json()) == profile_of(study.cells[-1])


def test_a_profile_is_short_whatever_its_cell_asks_for(tmp_path: Path) -> None:
    cells = load(tmp_path, changed(base={"epochs": 90})).cells
    for cell in cells:
        short = profile_of(cell)
        assert (short.epochs, short.save_parameters) == (None, False)
        assert short.steps is not None
        assert short.steps["total"] == short.steps["warmup"] + short.steps["measured"] <= 30
        assert 0 < short.profile["logged"] < short.steps["warmup"]  # type: ignore[index]


def test_a_framework_that_traces_no_layers_is_refused_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile: found true, and no cell can have a profile: not for framework jax"):
        load(tmp_path, changed(profile=True, base={"framework": "jax"}))
    study = load(tmp_path, changed(profile=True, axes={"framework": ["pytorch", "jax"]}))
    assert {cell.framework for cell in study.profiles} == {"pytorch"}
    assert "profile: 4 cells have none: not for framework jax, whose program traces no layers" in study.notes


@pytest.mark.parametrize(("events", "has_one"), [("program", True), ("none", False), ({"log": {"step": r"step (?P<step>\d+)"}}, False)])
def test_a_program_has_a_profile_where_it_tells_of_its_steps_itself(tmp_path: Path, events: Any, has_one: bool) -> None:
    (tmp_path / "train.py").write_text("")
    own = changed(programs={"mine": {**PROGRAM, "events": events}}, base={"program": "mine"}, axes={"model": None}, profile=True)
    if has_one:
        assert len(load(tmp_path, own).profiles) == 4
        return
    with pytest.raises(ConfigError, match="program mine does not tell of its steps by slipway_events"):
        load(tmp_path, own)
