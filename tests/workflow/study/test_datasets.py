"""A dataset is identified by its specification as the study file writes it, so that a project can be moved, copied and continued."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from tests.workflow.study.studies import changed, write
from workflow.dag.graph import Graph
from workflow.dag.refusals import load_graph
from workflow.study.publishing import publish_resolved, read_resolved
from workflow.study.study import Study, load_study

SITE = "storage: storage\ncache: {path: cache}\ndevice: cpu\n"
pytestmark = pytest.mark.processes


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


def test_a_copy_with_data_of_its_own_is_refused_on_the_same_storage(tmp_path: Path) -> None:
    site = SITE.replace("storage: storage", f"storage: {tmp_path / 'storage'}")
    run(project(tmp_path / "here", site=site))
    with pytest.raises(ConfigError, match=r"another file: .* asks for other cells, or for other data\. Give one of the two another name"):
        run(project(tmp_path / "there", site=site))
    shutil.rmtree(tmp_path / "here")
    run(tmp_path / "there")
