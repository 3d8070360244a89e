"""A dataset is identified by its specification as the study file writes it, so that a project can be moved, copied and continued."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from base.jsonfile import read_json
from data_prep.manifest import manifest_digest
from tests.workflow.study.studies import changed, write
from workflow.commands import main
from workflow.dag.graph import Graph
from workflow.dag.refusals import load_graph
from workflow.study.publishing import publish_resolved, read_resolved, resolved_study
from workflow.study.study import Study, load_study

ROOT = Path(__file__).parents[3]
EARLIER = ROOT / "tests" / "captured" / "moved-project"
SITE = "storage: storage\ncache: {path: cache}\ndevice: cpu\n"
pytestmark = pytest.mark.processes

RUNS = ["walk-letters-b4-n1-g1-f72c5c6161-r1", "walk-letters-b4-n2-g1-b96547cbde-r1"]


def photos(path: str, **changes: Any) -> dict[str, Any]:
    return changed(
        datasets={"digits": None, "photos": {"source": "folder", "path": path, "size": 32, "shards": 2}},
        base={"dataset": "photos"},
        **changes,
    )


def project(folder: Path, path: str = "data", site: str = SITE, **changes: Any) -> Path:
    """A folder with a study, a site and a source."""
    (folder / "data" / "class").mkdir(parents=True)
    (folder / "site.yaml").write_text(site)
    write(folder, photos(path, **changes))
    return folder


def load(folder: Path) -> Study:
    return load_study(folder / "study.yaml", str(folder / "site.yaml"), {})


def graph_of(folder: Path) -> Graph:
    return load_graph({"site": str(folder / "site.yaml")}, [folder / "study.yaml"], folder, {})


def run(folder: Path) -> Study:
    """Begin as a start of Snakemake does, but for its child processes."""
    study = graph_of(folder).study
    publish_resolved(study)
    return study


@pytest.mark.parametrize("path", ["data", "./data", "data/", "data/../data"])
def test_cells_carry_a_relative_path_as_it_is_written(tmp_path: Path, path: str) -> None:
    study = load(project(tmp_path / "here", path))
    assert {cell.dataset_spec["path"] for cell in study.cells} == {"data"}
    assert study.datasets["photos"].path == str(tmp_path / "here" / "data")
    assert study.cells == load(project(tmp_path / "there")).cells
    assert study.build_dir("photos").name != load(tmp_path / "there").build_dir("photos").name


def test_absolute_paths_and_those_of_a_home_directory_stay_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    absolute, home = (load(project(tmp_path / name, path)) for name, path in (("one", str(tmp_path / "data")), ("other", "~/data")))
    assert absolute.cells == home.cells
    assert {cell.dataset_spec["path"] for cell in home.cells} == {str(tmp_path / "data")}


def test_results_of_an_earlier_version_are_found_where_the_project_was_moved_to(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(EARLIER, folder)
    for _ in range(2):
        graph = graph_of(folder)
        assert [run.run_id for run in graph.study.runs] == RUNS
        assert graph.runs_to_make == []
        publish_resolved(graph.study)
    again = folder.rename(tmp_path / "once more")
    assert graph_of(again).runs_to_make == []
    study = (again / "study.yaml").read_text()
    (again / "study.yaml").write_text(study.replace("nodes: [1, 2]", "nodes: [1, 2], batch_size: [4, 8]").replace("batch_size: 4, ", ""))
    graph = graph_of(again)
    assert len(graph.runs_to_make) == 2
    assert len({json.dumps(cell.dataset_spec) for cell in graph.study.cells}) == 1


def test_results_of_an_earlier_version_are_found_where_they_were_made(tmp_path: Path) -> None:
    absolute = load(project(tmp_path / "here", str(tmp_path / "here" / "data")))
    publish_resolved(absolute)
    write(tmp_path / "here", photos("data"))
    assert load(tmp_path / "here").cells == absolute.cells


@pytest.mark.parametrize("edited", [False, True])
def test_a_moved_project_goes_on(tmp_path: Path, edited: bool) -> None:
    before = run(project(tmp_path / "here"))
    folder = (tmp_path / "here").rename(tmp_path / "there")
    if edited:
        write(folder, photos("data", axes={"nodes": [1, 2, 4]}))
    after = run(folder)
    assert {cell.cell_id for cell in before.cells} <= {cell.cell_id for cell in after.cells}
    assert read_resolved(after.results_dir).history[-1]["path"] == str(folder / "study.yaml")


@pytest.mark.parametrize("edited", [False, True])
def test_a_project_that_was_copied_with_its_storage_goes_on(tmp_path: Path, edited: bool) -> None:
    before = run(project(tmp_path / "here"))
    folder = Path(shutil.copytree(tmp_path / "here", tmp_path / "there"))
    if edited:
        write(folder, photos("data", axes={"nodes": [1, 2, 4]}))
    after = run(folder)
    assert {cell.cell_id for cell in before.cells} <= {cell.cell_id for cell in after.cells}
    assert run(tmp_path / "here").cells == before.cells


def test_a_copy_with_data_of_its_own_is_refused_on_the_same_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = SITE.replace("storage: storage", f"storage: {tmp_path / 'storage'}")
    run(project(tmp_path / "here", site=site))
    with pytest.raises(ConfigError, match=r"another file: .* asks for other cells, or for other data\. Give one of the two another name"):
        run(project(tmp_path / "there", site=site))
    shutil.rmtree(tmp_path / "here")
    graph_of(tmp_path / "there")
    words = ["plan", "--json", str(tmp_path / "there" / "study.yaml"), "--site", str(tmp_path / "there" / "site.yaml")]
    capsys.readouterr()
    assert main.run(words) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    (note,) = (note for note in notes if f"takes over the results of {tmp_path / 'here' / 'study.yaml'}" in note)
    assert note.endswith(f"is built here: `slipway dataset build --study {words[2]} --site {words[4]}`")
    run(tmp_path / "there")
    assert main.run(words) == 0
    assert "takes over" not in capsys.readouterr().out


def test_study_json_says_where_each_dataset_is_built(tmp_path: Path) -> None:
    study = load(project(tmp_path / "here"))
    assert resolved_study(study)["datasets"] == {"photos": study.build_dir("photos").name}
    publish_resolved(study)
    assert read_resolved(study.results_dir).datasets == {"photos": study.build_dir("photos").name}


@pytest.mark.slow
def test_a_moved_project_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(EARLIER, folder)
    (folder / "study.yaml").write_text((folder / "study.yaml").read_text().replace("nodes: [1, 2]", "nodes: [1, 2, 4]"))
    argv = [sys.executable, "-P", "-m", "workflow.commands.main", "run", str(folder / "study.yaml")]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [read_json(path) for path in sorted((folder / "storage/results/letters/runs").glob("*/record.json"))]
    assert len(records) == 3
    assert len({json.dumps(record["cell"]["dataset_spec"], sort_keys=True) for record in records}) == 1
    assert "3 of 3 runs ok" in done.stdout
    (built,) = (folder / "storage" / "datasets").glob("letters-*")
    # Shards are written in another way since then: what was built again has another digest, and a table marks its cells with `dataset`.
    earlier = {record["dataset"]["digest"] for record in map(read_json, EARLIER.rglob("runs/*/record.json"))}
    digests = [record["dataset"]["digest"] for record in records]
    assert len(earlier) == 1
    assert sorted(digests) == sorted([*earlier, *earlier, manifest_digest(built)])


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"cells": 7, "history": {"path": 3}}', '{"cells": [3, {"dataset_spec": 7}], "history": [null]}']
)
def test_a_study_json_that_cannot_be_read_changes_no_cell(tmp_path: Path, content: str) -> None:
    study = load(project(tmp_path / "here"))
    study.results_dir.mkdir(parents=True)
    (study.results_dir / "study.json").write_text(content)
    assert load(tmp_path / "here").cells == study.cells
