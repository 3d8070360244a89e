"""Profile runs: in no number of the measured runs, whatever their own record says."""

import json
from pathlib import Path
from typing import Any

from extras.export.runs import exported_runs
from tests.workflow.report.builder import make_cell, make_record, write_records, write_study
from workflow.report.analysis import analyse
from workflow.report.collect import Collection, collect, read_study
from workflow.report.outputs import tables_of
from workflow.study.cell import Cell, profile_of

CELL = make_cell()
PROFILE: dict[str, Any] = profile_of(Cell.from_json(CELL)).to_json()


def results(directory: Path, *, asked: bool, made: bool) -> Path:
    """The results of a study of one cell with two runs. `asked`: study.json has the profile; `made`: its run is there."""
    write_study(directory, [CELL], repeats=2)
    if asked:
        study = json.loads((directory / "study.json").read_text())
        study["cells"].append(PROFILE)
        study["runs"].append({"run_id": f"{PROFILE['cell_id']}-r1", "cell_id": PROFILE["cell_id"], "repeat": 1})
        (directory / "study.json").write_text(json.dumps(study))
    records = [make_record(CELL, 1), make_record(CELL, 2)]
    write_records(directory, [*records, *([make_record(PROFILE, step_s=9.0)] if made else [])])
    return directory


def measured_tables(collection: Collection) -> dict[str, str]:
    """All tables but that of profiles."""
    return {name: text for name, text in tables_of(analyse(collection)) if not name.startswith("tables/layers.")}


def test_tables_are_the_same_to_the_byte_with_and_without_a_profile(tmp_path: Path) -> None:
    collections = []
    for asked, made in ((False, False), (True, False), (True, True), (False, True)):
        directory = results(tmp_path / f"{asked}-{made}" / "results" / "digits-scaling", asked=asked, made=made)
        collections.append((directory, collect([directory])))
    first = measured_tables(collections[0][1])
    for directory, collection in collections:
        assert measured_tables(collection) == first, directory
        assert collection.sources[0].left_out == 0, "a profile is of this study, also where it is not asked for now"
        assert [run.run_id for run in exported_runs(directory)] == sorted(f"{CELL['cell_id']}-r{repeat}" for repeat in (1, 2))


def test_the_study_knows_its_profiles_beside_its_runs(tmp_path: Path) -> None:
    study = read_study(results(tmp_path / "results" / "digits-scaling", asked=True, made=False))
    assert list(study.profiles) == [f"{CELL['cell_id']}-profile-r1"]
    assert study.cells.keys() == {CELL["cell_id"]}
    assert {cell_id for cell_id, _ in study.runs.values()} == {CELL["cell_id"]}
