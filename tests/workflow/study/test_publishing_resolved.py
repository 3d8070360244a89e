"""study.json: written when something changed, read without YAML and pydantic."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from base.errors import RecordError
from tests.workflow.study.studies import changed, load
from workflow.report.collect import read_study
from workflow.study.cell import RunLimits
from workflow.study.publishing import find_run, publish_resolved, read_resolved, resolved_study
from workflow.study.study import Study, load_study


def local_study(folder: Path, **changes: object) -> Study:
    site = folder / "site.yaml"
    site.write_text("storage: storage\ncache: {path: cache}\n")
    return load(folder, changed(**changes), str(site))


def test_written_once_per_content(tmp_path: Path) -> None:
    study = local_study(tmp_path)
    first = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert publish_resolved(study, first)
    path = study.results_dir / "study.json"
    before = path.stat()
    assert not publish_resolved(study)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    content = read_resolved(study.results_dir)
    assert [entry["time"] for entry in content.history] == ["2026-01-02T03:04:05+00:00"]
    assert publish_resolved(local_study(tmp_path, base={"repeats": 1}))
    assert len(read_resolved(study.results_dir).history) == 2


def test_the_study_file_is_stored_as_it_was_typed(tmp_path: Path) -> None:
    study = local_study(tmp_path)
    stored = study.results_dir / "study.yaml"
    publish_resolved(study)
    assert stored.read_text() == study.path.read_text()
    before = stored.stat()
    publish_resolved(study)
    assert stored.stat().st_mtime_ns == before.st_mtime_ns, "written once per content"
    study.path.write_text(f"# only a comment is new\n{study.path.read_text()}")
    assert publish_resolved(load_study(study.path, str(tmp_path / "site.yaml")))
    assert stored.read_text() == study.path.read_text()
    last = read_resolved(study.results_dir).history[-1]
    assert last["file_sha256"] == hashlib.sha256(stored.read_bytes()).hexdigest(), "`slipway verify` compares the two"


def test_a_copy_of_the_study_file_leaves_the_one_of_the_owner(tmp_path: Path) -> None:
    study = local_study(tmp_path)
    publish_resolved(study)
    typed = study.path.read_text()
    copy = tmp_path / "copy.yaml"
    copy.write_text(f"# another comment\n{typed}")
    publish_resolved(load_study(copy, str(tmp_path / "site.yaml")), runs=False)
    assert (study.results_dir / "study.yaml").read_text() == typed


def test_content(tmp_path: Path) -> None:
    study = local_study(tmp_path, limits={"walltime": "5m", "gpu_hours": 2, "init": "30s"})
    publish_resolved(study)
    content = json.loads((study.results_dir / "study.json").read_text())
    content.pop("history")
    assert content == json.loads(json.dumps(resolved_study(study)))
    assert content["schema"] == "slipway.study/1"
    assert content["limits"] == {"walltime_s": 300.0, "gpu_hours": 2.0, "init_s": 30.0}
    found = read_resolved(study.results_dir)
    assert found.limits == RunLimits(walltime_s=300.0, init_s=30.0)
    assert (found.baseline, found.repeats) == ({"nodes": 1}, study.repeats)
    assert [entry.run_id for entry in found.runs] == [run.run_id for run in study.runs]
    assert found.site == study.site
    assert found.cells == study.cells
    for run in study.runs:
        assert find_run(found, run.run_id) == run
    with pytest.raises(RecordError, match="no run 'x-r1'"):
        find_run(found, "x-r1")


@pytest.mark.parametrize(("typed", "target"), [(0.75, 0.75), (1, 1.0), (None, None)])
def test_the_target_of_accuracy_travels_from_the_study_file_to_the_tables(
    tmp_path: Path, typed: float | None, target: float | None
) -> None:
    study = local_study(tmp_path, **({} if typed is None else {"target_accuracy": typed}))
    publish_resolved(study)
    assert (
        study.target_accuracy == read_resolved(study.results_dir).target_accuracy == read_study(study.results_dir).target_accuracy == target
    )
    assert ("target_accuracy" in json.loads((study.results_dir / "study.json").read_text())) == (target is not None)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ('"cell_id": "lenet', '"cell_id": "another', r"runs\[\d+\].cell_id: 'another\S+' is none of its cells; it was edited"),
        ('"walltime_s": 1800.0', '"walltime_s": 0', r"limits.walltime_s.*above 0"),
    ],
    ids=["a run of no cell", "a limit of no time, of which an allocation cannot be asked"],
)
def test_a_value_that_no_study_has_is_refused(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    study = local_study(tmp_path)
    publish_resolved(study)
    path = study.results_dir / "study.json"
    before, found, after = path.read_text().rpartition(right)
    path.write_text(f"{before}{wrong if found else ''}{after}")
    with pytest.raises(RecordError, match=words):
        read_resolved(study.results_dir)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "slipway.study/2"}', "[" * 100_000])
def test_a_file_that_is_none_of_ours(tmp_path: Path, content: str) -> None:
    with pytest.raises(RecordError, match="No such file"):
        read_resolved(tmp_path)
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(RecordError, match=r"study\.json"):
        read_resolved(tmp_path)
