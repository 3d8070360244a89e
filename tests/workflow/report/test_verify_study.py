"""`slipway verify` beside what was asked for: study.json, the study file, the cell of each record, and what a record says of itself."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from base.jsonfile import canonical_json
from tests.workflow.report.builder import collected, make_cell, make_record, plausible_records, scaling_cells, write_study
from tests.workflow.report.test_verify import CELL, RUN, attempt, publish
from workflow.commands.main import run
from workflow.report.outputs import write_all, write_collected, write_tables
from workflow.report.page import page
from workflow.report.verify import StudyRuns, differences_from_study, of_hosts, of_its_programs, verify_outputs, verify_runs
from workflow.run.record.events import RankEvents
from workflow.run.record.reading import fitting

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
    (directory / ".study-1.json").write_text(json.dumps({"study": content, "typed": text}))


def test_a_study_without_study_json_is_a_finding_and_its_last_trace_stays(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(write_collected([results], results), results)
    before = (results / "records.parquet").read_bytes()
    (results / "study.json").unlink()
    assert run(["verify", str(results)]) == 19
    said = capsys.readouterr().out
    assert f"{results / 'study.json'}: it is missing, so nobody knows which cells and runs were asked for" in said
    assert f"{results / 'records.parquet'}: not compared, since study.json is missing: this is the last that tells of its 1 run" in said
    assert "makes it anew" not in said
    for verb in ("tables", "report"):
        assert run([verb, str(results)]) == 19
        assert "is the last that tells of its 1 run: put study.json back" in capsys.readouterr().err
        assert (results / "records.parquet").read_bytes() == before
    assert run(["tables", str(results), "--out", str(results.parent / "elsewhere")]) == 0


def test_a_page_without_study_json_does_not_look_whole(tmp_path: Path) -> None:
    directory = tmp_path / "digits"
    analysis = collected(directory, plausible_records(scaling_cells(nodes=[1, 2])))
    assert "study.json" not in page(analysis, {}).split("<section", 1)[0]
    (directory / "study.json").unlink()
    analysis = write_all([directory], tmp_path / "out")
    assert analysis.summary.closing_line() == "6 of 6 runs ok; without study.json nobody knows which runs are missing"
    head = (tmp_path / "out" / "report.html").read_text().split("<section", 1)[0]
    assert f"study.json is missing in {directory}: this page shows the runs whose records are left" in head
    assert 'class="good"' not in head


def test_a_run_that_was_removed_and_is_in_the_collected_records_is_named(results: Path) -> None:
    write_tables(write_collected([results], results), results)
    shutil.rmtree(results / "runs" / RUN)
    (finding,) = verify_outputs(results).findings
    assert f"it has 1 run of which nothing is there any more: {RUN} (ok); this is the last that tells of them" in finding
    assert "makes it anew" not in finding


@pytest.mark.parametrize(("damage", "words"), [("changed", "it was changed since it ran"), ("gone", "it is missing, or cannot be read")])
def test_a_study_file_that_is_not_the_one_that_ran_is_a_finding_and_the_page_says_so(results: Path, damage: str, words: str) -> None:
    typed(results, "study: digits-scaling\n")
    assert verify_runs(results).findings == []
    write_all([results], results)
    assert "The study file, as it was typed" in (results / "report.html").read_text()
    if damage == "changed":
        (results / "study.yaml").write_text("study: digits-scaling # better\n")
    else:
        (results / "study.yaml").unlink()
    (finding,) = verify_runs(results).findings
    assert finding.startswith(f"{results / 'study.yaml'}: {words}")
    write_all([results], results)
    text = (results / "report.html").read_text()
    assert "The study file, as it was typed" not in text
    assert ("The study file, changed since the last run" in text) == (damage == "changed")


def test_a_comment_that_was_edited_under_an_older_version_is_no_change(results: Path) -> None:
    """It left the digest of the file as it was first, and wrote down each file that ran."""
    typed(results, "study: digits-scaling\n")
    (results / ".study-1.json").unlink()
    (results / "study.yaml").write_text("study: digits-scaling # better\n")
    assert verify_runs(results).findings == []
    write_all([results], results)
    assert "changed since the last run" not in (results / "report.html").read_text()


def test_a_page_that_is_gone_beside_its_plots_is_named(results: Path) -> None:
    write_all([results], results)
    (results / "report.html").unlink()
    assert verify_outputs(results).findings == [
        f"{results / 'report.html'}: it is missing, and the plots that it shows are there; `slipway report` makes it anew"
    ]


def test_limits_that_were_changed_in_study_json_are_a_finding(results: Path) -> None:
    typed(results, "study: digits-scaling\n")
    content = json.loads((results / "study.json").read_text())
    content["limits"]["gpu_hours"] = 11
    (results / "study.json").write_text(json.dumps(content))
    assert verify_runs(results).findings == [
        f"{results / 'study.json'}: it was changed: its content is not that of the last line of its history"
    ]


def test_tables_and_page_that_lie_elsewhere_are_verified_there(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = results.parent / "out"
    write_all([results], out)
    assert run(["verify", str(results), "--out", str(out)]) == 0
    assert "54 files of tables, plots and page made again: all is what was written" in capsys.readouterr().out
    moved = results.rename(results.with_name("moved"))
    (out / "tables" / "times.md").write_text("other")
    assert run(["verify", str(moved), "--out", str(out)]) == 19
    assert f"{out / 'tables' / 'times.md'}: not what the records give" in capsys.readouterr().out


@pytest.mark.parametrize("beside", [True, False])
def test_a_page_of_results_that_were_copied_is_verified_without_the_original(results: Path, beside: bool) -> None:
    """It shows the study file: that of the copy is read."""
    write_all([results], results if beside else results.parent / "out")
    copy = Path(shutil.copytree(results, results.parent / "far" / "away"))
    out = copy if beside else results.parent / "out"
    shutil.rmtree(results)
    assert verify_outputs(out, [copy]).findings == []
    (copy / "study.yaml").write_text("study: another\n")
    assert verify_outputs(out, [copy]).findings == [
        f"{out / 'report.html'}: not what the records give; it was changed, or made by another version, or of another study file; "
        "`slipway report` makes it anew"
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


@pytest.mark.parametrize(
    ("changed", "keys"), [({}, None), ({"precision": "bf16"}, "precision"), ({"threads": 4}, "threads"), ({"device": "cuda"}, "device")]
)
def test_a_record_that_differs_from_cell_json_beside_it_is_a_finding(tmp_path: Path, changed: dict[str, Any], keys: str | None) -> None:
    directory = write_study(tmp_path / "digits", [CELL], repeats=1)
    given = {**CELL, "device": "cpu", "threads": 2, "run_id": RUN, "repeat": 1, "attempt": 1, "model_layers": []}
    beside = directory / "runs" / RUN / "attempts" / "1" / "cell.json"
    beside.parent.mkdir(parents=True)
    beside.write_text(json.dumps({**given, **changed}))
    attempt(directory)
    found = [finding.partition("record.json: ")[2] for finding in verify_runs(directory).findings]
    assert found == ([] if keys is None else [f"cell.json beside it, which the program was given, says otherwise: {keys}"])


def busy_node(record: dict[str, Any]) -> None:
    part = {"seconds": 10.0, "others_cores": 1.5, "busiest": [{"name": "a", "cores": 1.5}], "steal_ratio": 0.0, "memory_wait_ratio": 0.0}
    during = {**part, "swapped_in_bytes": 0, "throttle_events": None, "gpus": None}
    record["nodes"][0]["load"] = {"cores": 2, "during": during, "before": None}
    record["busy"] = []


def one_host(record: dict[str, Any]) -> None:
    for node in record["nodes"]:
        node.update(hostname="one", cores=[0, 1])


def one_hour(record: dict[str, Any], *, of_end: bool = True) -> None:
    for key in ("start", "end")[: 1 + of_end]:
        record["time"][key] = record["time"][key].replace("T10:", "T09:")


def longer(record: dict[str, Any]) -> None:
    record["run_s"] += 2
    record["steps_s"]["push"] += 2


def fast_clock(record: dict[str, Any]) -> None:
    record["steps_s"].update(train=1.0, stage=record["steps_s"]["stage"] + record["steps_s"]["train"] - 1.0)


SAID: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "the sum of the steps": (lambda record: record.update(run_s=1.5 * record["run_s"]), "and the steps stage to release add up to"),
    "shared cores": (one_host, "oversubscribed is false, and local-0 and local-1 had cores in common"),
    "the library": (
        lambda record: record["provenance"].update(framework_version="9.9"),
        "provenance.framework_version is '9.9', and its events tell '2.13.0'",
    ),
    "busy": (busy_node, "busy says nothing, and the load of its nodes gives 'local-0: others used 1.5 of 2 cores"),
    "alone": (busy_node, "exclusive is true, and others were seen at work on its nodes while it measured"),
    "its own time": (longer, "and from time.start to time.end it is 74.7"),
    "its day": (one_hour, "and rank 0 ran from 2026-05-02T10:00:03+00:00 to 2026-05-02T10:00:44+00:00"),
    "its start": (partial(one_hour, of_end=False), "and from time.start to time.end it is 36"),
    "a host": (lambda record: record["nodes"][1].update(hostname="node07"), "its nodes are node00, node07, and its programs ran on node01"),
    "a warning": (fast_clock, "its warnings are without 'the ranks tell of"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_a_record_says_of_itself_is_asked_again(results: Path, name: str) -> None:
    assert verify_runs(results).findings == []
    change, words = SAID[name]
    record: dict[str, Any] = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    change(record)
    publish(results, record)
    assert any(words in finding for finding in verify_runs(results).findings)


@pytest.mark.parametrize(("program", "compared"), [(None, True), ({"name": "mine"}, False)])
def test_the_host_name_that_an_own_program_reports_is_free(program: dict[str, str] | None, compared: bool) -> None:
    whole = make_record(make_cell(nodes=1))
    record = {**whole, "cell": {**whole["cell"], "program": program}}
    start = {"hostname": "alias", "provenance": {}, "framework": "pytorch", "framework_version": "2.13.0"}
    found = list(of_hosts(record, {0: RankEvents(start=start)}))
    assert found == (["its nodes are node00, and its programs ran on alias"] if compared else [])


def test_a_run_that_waited_for_this_machine_is_no_finding(results: Path) -> None:
    record: dict[str, Any] = json.loads((results / "runs" / RUN / "record.json").read_bytes())
    record["time"]["end"] = (datetime.fromisoformat(record["time"]["end"]) + timedelta(seconds=30)).isoformat()
    record["steps_s"]["assign"] = 30.0
    publish(results, record)
    assert verify_runs(results).findings == []


def test_a_record_that_was_written_without_a_long_value_is_believed() -> None:
    told = {"said": "x" * (8 << 20), "torch_version": "2.13.0"}
    whole = make_record(make_cell())
    record = dict(fitting({**whole, "provenance": {**whole["provenance"], **told}}))
    assert list(of_its_programs(record, told)) == []
    other = {**record, "provenance": {**record["provenance"], "torch_version": "1"}}
    assert list(of_its_programs(other, told)) == ["provenance.torch_version is '1', and its events tell '2.13.0'"]
    (found,) = of_its_programs({**record, "warnings": []}, told)
    assert found.startswith("provenance.said is nothing")
