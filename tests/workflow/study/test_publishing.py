"""Results belong to the study file that ran last: another file of the same name is refused, the same one elsewhere is not."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from base.jsonfile import publish_json, read_json
from tests.workflow.study.studies import changed, write
from workflow.commands import main
from workflow.commands.chosen_study import refresh
from workflow.dag.graph import Graph
from workflow.dag.refusals import load_graph
from workflow.study.publishing import folder_of, is_same_file, origin_of, publish_resolved, read_resolved, refuse_unless_owner
from workflow.study.study import Study, load_study

pytestmark = pytest.mark.processes
SITE = "storage: storage\ncache: {path: cache}\ndevice: cpu\n"


def looked_at(study: Study, adopt: bool = False) -> Study:
    refuse_unless_owner(str(study.results_dir), origin_of(study, adopt))
    return study


class Two:
    """Two places whose studies go to one storage."""

    def __init__(self, root: Path) -> None:
        self.site = root / "site.yaml"
        self.site.write_text(SITE)
        self.one, self.other = root / "one", root / "other"
        self.one.mkdir()
        self.other.mkdir()

    def load(self, place: Path, study: dict[str, Any], *, adopt: bool = False) -> Study:
        """Look at the results as a start of Snakemake does, but in this process."""
        return looked_at(load_study(write(place, study), str(self.site), {}), adopt)

    def run(self, place: Path, study: dict[str, Any], *, adopt: bool = False) -> Study:
        found = self.load(place, study, adopt=adopt)
        publish_resolved(found, adopt=adopt)
        return found

    def graph(self, place: Path, study: dict[str, Any], **config: Any) -> Graph:
        return load_graph({"site": str(self.site), **config}, [write(place, study)], place, {})


OTHER = changed(axes={"batch_size": [16]})


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def test_another_file_of_the_same_name_is_refused_with_both_paths(two: Two) -> None:
    before = two.run(two.one, changed())
    with pytest.raises(ConfigError) as caught:
        two.graph(two.other, OTHER)
    for word in (
        str(two.one / "study.yaml"),
        str(two.other / "study.yaml"),
        hashlib.sha256(before.text.encode()).hexdigest()[:12],
        f"`slipway run {two.other / 'study.yaml'} --adopt --site {two.site}`, or `--config adopt=yes` of snakemake",
    ):
        assert word in str(caught.value)
    assert len(read_resolved(before.results_dir).history) == 1


def test_who_is_told_adopts_and_is_the_owner_then(two: Two) -> None:
    two.run(two.one, changed())
    graph = two.graph(two.other, OTHER, adopt="yes")
    graph.publish_study()
    assert [entry["path"] for entry in read_resolved(graph.study.results_dir).history] == [
        str(two.one / "study.yaml"),
        str(two.other / "study.yaml"),
    ]
    two.run(two.other, OTHER)
    with pytest.raises(ConfigError, match="another file"):
        two.load(two.one, changed())


def test_a_moved_or_copied_study_is_the_same(two: Two) -> None:
    two.run(two.one, changed())
    study = two.run(two.other, {**changed(), "limits": {"walltime": "20m"}})
    assert [entry["path"] for entry in read_resolved(study.results_dir).history][-1] == str(two.other / "study.yaml")
    two.run(two.other, OTHER)


@pytest.mark.parametrize("same", ["text", "cells", "neither"])
def test_a_file_that_cannot_be_found_leaves_its_results_to_the_same_text_or_cells_only(two: Two, same: str) -> None:
    """It was moved, or is in a directory that this host does not mount."""
    results = two.run(two.one, changed()).results_dir
    (two.one / "study.yaml").unlink()
    if same == "text":  # its cells were others, in another version of Slipway
        content = read_json(results / "study.json")
        content["history"][-1]["cells_sha256"] = "0" * 64
        publish_json(results / "study.json", content)
    study = {"text": changed(), "cells": {**changed(), "limits": {"walltime": "20m"}}, "neither": OTHER}[same]
    if same == "neither":
        with pytest.raises(ConfigError, match=r"; this machine does not find it\), which asks for other cells.* --adopt"):
            two.load(two.other, study)
    two.run(two.other, study, adopt=same == "neither")
    two.run(two.other, OTHER)


def test_results_of_an_earlier_version_are_anybodys(two: Two) -> None:
    results = two.run(two.one, changed()).results_dir
    content = read_json(results / "study.json")
    publish_json(results / "study.json", {**content, "history": [{"sha256": "0" * 64, "time": "2026-01-01T00:00:00+00:00"}]})
    two.run(two.other, OTHER)


def test_who_comes_between_look_and_start_is_refused_too(two: Two) -> None:
    graph = two.graph(two.other, OTHER)
    two.run(two.one, changed())
    with pytest.raises(ConfigError, match="another file"):
        publish_resolved(graph.study)
    with pytest.raises(ConfigError, match="another file"):
        graph.start("local")


def test_the_way_out_is_told_to_who_submits_too(two: Two) -> None:
    two.run(two.one, changed())
    two.site.write_text("storage: storage\ncache: {path: cache}\ndevice: cpu\nscheduler: slurm\n")
    with pytest.raises(ConfigError, match=r"`slipway run \S+ --adopt \S+ \S+` or `slipway submit \S+ --adopt "):
        two.load(two.other, OTHER)


@pytest.mark.parametrize("way", ["{root}/one/../one", "{root}/link"])
@pytest.mark.parametrize("gone", [False, True])
def test_the_owner_is_the_same_by_another_path(two: Two, tmp_path: Path, way: str, gone: bool) -> None:
    (tmp_path / "link").symlink_to(two.one)
    place = Path(way.format(root=tmp_path))
    two.run(place, changed())
    study = write(two.one, OTHER)
    if gone:
        text = study.read_text()
        study.unlink()
        assert is_same_file(str(place / "study.yaml"), str(study))
        study.write_text(text)
    two.run(two.one, OTHER)


@pytest.mark.parametrize("path", [7, "a\0b", "x/../" * 100_000 + "y"])
def test_what_is_no_path_is_no_file(path: object) -> None:
    assert not is_same_file(path, "/x/study.yaml")


def test_a_refusal_is_short_whatever_study_json_says(two: Two) -> None:
    results = two.run(two.one, changed()).results_dir
    content = read_json(results / "study.json")
    content["history"][-1].update(path="/x/" * 100_000, file_sha256="\x1b" * 100_000, time="t" * 100_000)
    publish_json(results / "study.json", content)
    with pytest.raises(ConfigError, match="would write into the results of another file") as caught:
        two.load(two.other, OTHER)
    assert len(str(caught.value)) < 2000
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("limits", [{"walltime": "30m"}, {"walltime": "20m"}])
def test_tables_of_a_copy_leave_the_owner(two: Two, limits: dict[str, Any]) -> None:
    owner = two.run(two.one, {**changed(), "limits": {"walltime": "30m"}})
    copy = two.load(two.other, {**changed(), "limits": limits})
    assert refresh(copy) is (limits["walltime"] == "20m")
    last = read_resolved(owner.results_dir).history[-1]
    assert (last["path"], last["file_sha256"]) == (str(owner.path), hashlib.sha256(owner.text.encode()).hexdigest())
    two.run(two.one, OTHER)


def test_tables_of_what_has_not_run_make_no_owner(two: Two) -> None:
    refresh(two.load(two.one, changed()))
    two.run(two.other, OTHER)


def test_the_plan_is_refused_too_and_that_of_a_cell(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    results = two.run(two.one, changed()).results_dir
    path = write(two.other, OTHER)
    cell = load_study(path, str(two.site), {}).cells[0].cell_id
    for words in ([], ["--cell", cell, "--json"]):
        assert main.run(["plan", str(path), "--site", str(two.site), *words]) == 10
        said = capsys.readouterr()
        assert f"would write into the results of another file: {results}" in said.err
        assert f"`slipway run {path} --adopt " in said.err
        assert words or "missing; " in said.out, "the plan is shown before it is refused"


def test_tables_of_a_file_whose_results_are_anothers_are_refused(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    two.run(two.one, changed())
    write(two.other, OTHER)
    for words in (["tables", "--show"], ["tables"], ["report"], ["verify"]):
        assert main.run([*words, str(two.other / "study.yaml"), "--site", str(two.site)]) == 10, words
        assert f"are those of {two.one / 'study.yaml'}" in capsys.readouterr().err


def test_tables_of_the_owners_edited_file_say_what_they_show(two: Two, capsys: pytest.CaptureFixture[str]) -> None:
    two.run(two.one, changed())
    arguments = [str(two.one / "study.yaml"), "--site", str(two.site)]
    assert main.run(["tables", "--json", *arguments]) == 0
    assert capsys.readouterr().err == ""
    write(two.one, OTHER)
    assert main.run(["tables", "--json", *arguments]) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    assert f"{two.one / 'study.yaml'} was edited: what is shown are the cells and the baseline as of 20" in said.err


def test_the_file_of_a_copied_project_is_not_said_to_be_edited(two: Two, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "project" / "site.yaml"
    site.parent.mkdir()
    site.write_text("storage: storage\ncache: {path: cache}\n")
    study = write(site.parent, changed())
    publish_resolved(load_study(study, str(site)))
    shutil.copytree(site.parent, tmp_path / "copied")
    words = ["tables", "--json", str(tmp_path / "copied" / study.name), "--site", str(tmp_path / "copied" / "site.yaml")]
    assert main.run(words) == 0
    assert capsys.readouterr().err == ""


def test_versions_of_a_file_that_was_brought_have_one_storage() -> None:
    place = Path("/data/storage/studies/photos-0123456789ab")
    assert folder_of(place / ("a" * 32) / "photos.yaml") == Path("/data")
    assert folder_of(Path("/home/ada/photos.yaml")) == Path("/home/ada")


# A dataset is identified by its specification as the study file writes it, so that a project can be moved, copied and continued.


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


def run(folder: Path) -> Study:
    """Begin as a start of Snakemake does, but for its child processes."""
    study = looked_at(load(folder))
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
