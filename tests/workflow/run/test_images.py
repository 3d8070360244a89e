"""The rule `image`: what a study's cells need, pinned and archived; by a stand-in of apptainer, whose images are files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from base.errors import ContainerError, RecordError
from base.jsonfile import plain, publish_json
from containers.frameworks import load_framework
from containers.images.model import PinnedImage, StudyImage, check_same, manifest_path, read_manifest
from tests.workflow.run.cells import document, made_site
from workflow.run.images import Pinned, check_archives, image_of, pinned_before, prepare, references
from workflow.study.cell import Cell
from workflow.study.site import Site

CELLS = tuple(document(device=device) for device in ("site", "cpu"))


def study_on(storage: Path, engine: str, **images: str) -> tuple[Site, tuple[Cell, ...]]:
    """Site and cells of a study."""
    return made_site(storage, engine=engine, images=images), CELLS


def prepared(site: Site, cells: tuple[Cell, ...], before: Mapping[str, Pinned] | None = None) -> dict[str, Any]:
    """As the file has it."""
    found: dict[str, Any] = plain(prepare(site, cells, None, before))
    return found


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in exec*broken.sif*) exit 127 ;; esac\necho slipway 3 11\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_the_sites_image_comes_before_the_frameworks_own(tmp_path: Path) -> None:
    assert references(*study_on(tmp_path, "docker")) == {"pytorch": (load_framework("pytorch").image, "python3")}
    assert references(*study_on(tmp_path, "docker", pytorch="site/torch:1")) == {"pytorch": ("site/torch:1", "python3")}


def test_the_bare_engine_needs_no_image(tmp_path: Path) -> None:
    assert prepared(*study_on(tmp_path, "bare")) == {"engine": "bare", "images": {}}


@pytest.mark.processes
@pytest.mark.usefixtures("apptainer")
def test_each_framework_is_archived_once_and_named_by_content(tmp_path: Path) -> None:
    (tmp_path / "torch.sif").write_bytes(b"squashfs")
    found = prepared(*study_on(tmp_path, "apptainer", pytorch=str(tmp_path / "torch.sif")))
    entry = found["images"]["pytorch"]
    assert json.loads(json.dumps(found)) == found
    assert read_manifest(Path(entry["archive"])).image.image_id == entry["image"]["image_id"]
    image = read_manifest(Path(entry["archive"])).image
    check_same(image, {"n1": entry["image"]["image_id"]})
    with pytest.raises(ContainerError, match="n2: no image"):
        check_same(image, {"n1": entry["image"]["image_id"], "n2": ""})


@pytest.mark.processes
@pytest.mark.usefixtures("apptainer")
def test_a_study_keeps_what_it_was_pinned_to(tmp_path: Path) -> None:
    sif, results = tmp_path / "torch.sif", tmp_path / "results"
    sif.write_bytes(b"squashfs")
    study = study_on(tmp_path, "apptainer", pytorch=str(sif))
    first = prepared(*study)
    results.mkdir()
    publish_json(results / "images-0123456789ab.json", first)
    sif.write_bytes(b"another squashfs")
    assert prepared(*study)["images"] != first["images"]
    before = pinned_before(results, "apptainer")
    assert prepared(*study, before) == first
    assert pinned_before(results, "docker") == {}


@pytest.mark.processes
@pytest.mark.usefixtures("apptainer")
def test_an_archive_that_is_gone_is_named_and_no_other_image_is_taken(tmp_path: Path) -> None:
    sif, results = tmp_path / "torch.sif", tmp_path / "results"
    sif.write_bytes(b"squashfs")
    study, file = study_on(tmp_path, "apptainer", pytorch=str(sif)), results / "images-0123456789ab.json"
    check_archives(str(file), str(tmp_path))
    first = prepared(*study)
    results.mkdir()
    publish_json(file, first)
    archived = Path(first["images"]["pytorch"]["archive"])
    for gone in (manifest_path(archived), archived):
        gone.unlink()
        for again in (lambda: check_archives(str(file), str(tmp_path)), lambda: prepared(*study, pinned_before(results, "apptainer"))):
            with pytest.raises(ContainerError, match=r"is not on storage any more; put the archive .* back; .*images-0123") as told:
                again()
            assert str(archived) in str(told.value)
    assert json.loads(file.read_text()) == first


@pytest.mark.processes
@pytest.mark.usefixtures("apptainer")
def test_a_study_names_its_image_as_it_asked_for_it_whoever_archived_that_first(tmp_path: Path) -> None:
    for name in ("theirs", "ours"):
        (tmp_path / f"{name}.sif").write_bytes(b"squashfs")
    (theirs,) = prepared(*study_on(tmp_path, "apptainer", pytorch=str(tmp_path / "theirs.sif")))["images"].values()
    value = prepared(*study_on(tmp_path, "apptainer", pytorch=str(tmp_path / "ours.sif")))
    (ours,) = value["images"].values()
    assert ours["archive"] == theirs["archive"]
    assert [entry["image"]["reference"] for entry in (theirs, ours)] == [str(tmp_path / f"{name}.sif") for name in ("theirs", "ours")]
    file = tmp_path / "images-0123456789ab.json"
    publish_json(file, value)
    check_archives(str(file), str(tmp_path))
    assert json.loads(file.read_text()) == value
    assert list(pinned_before(tmp_path, "apptainer")) == [str(tmp_path / "ours.sif")]


@pytest.mark.processes
@pytest.mark.usefixtures("apptainer")
def test_a_storage_that_has_moved_still_has_its_archives(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "torch.sif").write_bytes(b"squashfs")
    file = tmp_path / "images-0123456789ab.json"
    publish_json(file, prepared(*study_on(tmp_path / "old", "apptainer", pytorch=str(tmp_path / "torch.sif"))))
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "torch.sif").unlink()
    check_archives(str(file), str(tmp_path / "new"))
    (entry,) = json.loads(file.read_text())["images"].values()
    assert Path(entry["archive"]).parent == tmp_path / "new" / "images"


@pytest.mark.parametrize("text", ["[]", '{"engine": "docker"}', '{"engine": "docker", "images": {"pytorch": {"archive": "a"}}}'])
def test_a_file_of_pins_that_was_edited_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "images-0123456789ab.json").write_text(text)
    with pytest.raises(RecordError, match="images-0123456789ab.json does not say what images were pinned to"):
        pinned_before(tmp_path, "docker")


def test_a_file_that_says_nothing_of_the_image_is_named(tmp_path: Path) -> None:
    file = tmp_path / "images-0123456789ab.json"
    pinned = PinnedImage(
        reference="a:1", engine="docker", platform="linux/amd64", size_bytes=1, digest=f"sha256:{'1' * 64}", image_id=f"sha256:{'2' * 64}"
    )
    entry = StudyImage(archive="a", image=pinned, file="a", sha256="3" * 64, bytes=1)
    publish_json(file, {"engine": "docker", "images": {"pytorch": entry}})
    assert image_of(str(file), "docker", "pytorch") == entry
    for engine, framework in (("docker", "jax"), ("podman", "pytorch")):
        with pytest.raises(ContainerError, match=r"images-0123456789ab.json names no image of .* remove it"):
            image_of(str(file), engine, framework)
