"""`slipway verify` beside what was asked for: study.json, the study file, and the cell of each record."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from base.jsonfile import canonical_json
from extras.verify.runs import StudyRuns, differences_from_study, verify_runs
from tests.extras.verify.test_runs import CELL, RUN, attempt
from tests.workflow.report.builder import make_cell, make_record, write_study
from workflow.commands.main import run
from workflow.report.analysis import analyse
from workflow.report.collect import collect
from workflow.report.outputs import write_collected, write_tables
from workflow.report.page import page

pytestmark = pytest.mark.processes


@pytest.fixture
def results(tmp_path: Path) -> Path:
    directory = write_study(tmp_path / "results" / "digits", [CELL], repeats=1)
    attempt(directory)
    return directory


def typed(directory: Path, text: str) -> None:
    """The study file, and its digest in study.json as a run leaves it."""
    (directory / "study.yaml").write_text(text)
    content = json.loads((directory / "study.json").read_text())
    del content["history"]
    digests = [hashlib.sha256(part).hexdigest() for part in (canonical_json(content), text.encode())]
    content["history"] = [{"sha256": digests[0], "time": "2026-01-02", "file_sha256": digests[1]}]
    (directory / "study.json").write_text(json.dumps(content))


def test_a_study_without_study_json_is_a_finding_and_its_last_trace_stays(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(write_collected([results], results), results)
    before = (results / "records.parquet").read_bytes()
    (results / "study.json").unlink()
    assert run(["verify", str(results)]) == 19
    said = capsys.readouterr().out
    assert f"{results / 'study.json'}: it is missing, so nobody knows which cells and runs were asked for" in said
    for verb in ("tables", "report"):
        assert run([verb, str(results)]) == 19
        assert "study.json: it is missing" in capsys.readouterr().err
        assert (results / "records.parquet").read_bytes() == before


@pytest.mark.parametrize(("damage", "words"), [("changed", "it was changed since it ran"), ("gone", "it is missing, or cannot be read")])
def test_a_study_file_that_is_not_the_one_that_ran_is_a_finding_and_the_page_says_so(results: Path, damage: str, words: str) -> None:
    typed(results, "study: digits-scaling\n")
    assert verify_runs(results).findings == []
    assert "The study file, as it was typed" in page(analyse(collect([results])), {}, results)
    if damage == "changed":
        (results / "study.yaml").write_text("study: digits-scaling # better\n")
    else:
        (results / "study.yaml").unlink()
    (finding,) = verify_runs(results).findings
    assert finding.startswith(f"{results / 'study.yaml'}: {words}")
    text = page(analyse(collect([results])), {}, results)
    assert "The study file, as it was typed" not in text
    assert ("The study file, changed since the last run" in text) == (damage == "changed")


def test_limits_that_were_changed_in_study_json_are_a_finding(results: Path) -> None:
    typed(results, "study: digits-scaling\n")
    content = json.loads((results / "study.json").read_text())
    content["limits"]["gpu_hours"] = 11
    (results / "study.json").write_text(json.dumps(content))
    assert verify_runs(results).findings == [
        f"{results / 'study.json'}: it was changed: its content is not that of the last line of its history"
    ]


def test_a_record_of_another_cell_than_the_study_has_is_a_finding(results: Path) -> None:
    content = json.loads((results / "study.json").read_text())
    content["cells"][0]["optimizer"] = {**CELL["optimizer"], "learning_rate": 0.5}
    (results / "study.json").write_text(json.dumps(content))
    path = results / "runs" / RUN / "attempts" / "1" / "record.json"
    assert verify_runs(results).findings == [f"{path}: its cell differs from the study's cell of the same run: optimizer"]


@pytest.mark.parametrize(("changes", "same"), [({"image": "me/gpt:2", "python": "/opt/python"}, True), ({"command": ["eval"]}, False)])
def test_a_run_may_have_had_another_image_than_the_study_has_now(changes: dict[str, Any], same: bool) -> None:
    program = {"name": "gpt", "command": ["train"], "launcher": "torchrun", "image": "me/gpt:1", "python": "python3", "version": 1}
    record = make_record(make_cell(framework="gpt", model="gpt", program=program))
    now = {record["cell"]["cell_id"]: {**record["cell"], "program": {**program, **changes}}}
    asked = StudyRuns(study=record["study"], cells=now, runs={record["run_id"]: (record["cell"]["cell_id"], 1)})
    assert list(differences_from_study(record, asked)) == (
        [] if same else ["its cell differs from the study's cell of the same run: program"]
    )
