"""Images that pyxis has unpacked: by name, once, and who removes them. Enroot and srun are stand-ins, whose trees are directories of one
place; with the real ones: tests/slurm/test_pyxis.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import ContainerError
from containers import reaping
from containers.images import pyxis_images
from containers.images.archiving import archive
from containers.images.last_use import last_used, mark_used, marked_trees
from containers.images.loading import image_to_start, load, loaded_id
from containers.images.model import read_manifest
from containers.images.pinning import pin
from containers.images.reaping import find_images, remove_image

CAPTURED = Path(__file__).parents[1] / "captured" / "enroot" / "list-fancy.json"
ENROOT = """#!/bin/sh
cd "{place}" || exit 1
case $1 in
    list) echo "NAME PID COMM"; for tree in *; do [ ! -d "$tree" ] || echo "$tree $(cat "$tree/pid" 2>/dev/null)"; done ;;
    remove) [ ! -e stuck ] || {{ echo "[ERROR] $3 is busy" >&2; exit 1; }}; rm -r "$3" ;;
esac
"""
SRUN = """#!/bin/sh
for word in "$@"; do case $word in --container-name=*:create) name=${{word#*=}} ;; esac; done
mkdir "{place}/pyxis_${{name%:create}}" && echo "$*" >> "{place}/steps"
[ ! -e "{place}/fails" ] || {{ echo "slurmstepd: error: pyxis: No space left on device" >&2; exit 1; }}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the trees are."""
    place = tmp_path / "trees"
    place.mkdir()
    for name, script in (("enroot", ENROOT), ("srun", SRUN)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(script.format(place=place))
        program.chmod(0o755)
    for name, value in {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1"}.items():
        monkeypatch.setenv(name, value)
    return place


@pytest.fixture
def loads(place: Path, tmp_path: Path) -> Callable[[], str]:
    """Load the one image; what is started."""
    squashed, cache = tmp_path / "image.sqsh", tmp_path / "cache"
    squashed.write_bytes(b"hsqs")
    file = archive(pin(str(squashed), pyxis_images.ENGINE), tmp_path / "storage")

    def load_it() -> str:
        load(file, pyxis_images.ENGINE, cache)
        assert loaded_id(read_manifest(file), pyxis_images.ENGINE, cache)
        return image_to_start(read_manifest(file), pyxis_images.ENGINE, cache)

    return load_it


def here(place: Path) -> list[str]:
    return sorted(path.name.removeprefix("pyxis_") for path in place.iterdir() if path.is_dir())


def test_what_enroot_lists_is_read() -> None:
    found = pyxis_images.parse(json.loads(CAPTURED.read_text())["stdout"])
    assert [(tree.uid, tree.job, tree.host, tree.runs) for tree in found] == [(0, "slurm:17:0", "n1", False), (0, "slurm:18:0", "n1", True)]
    (scoped,) = pyxis_images.parse(
        "NAME PID\npyxis_17_slipway-u4321-17.2-8f966222ff01-gpu-a.b-01-c0ffee 44 sh\n                      45 sleep\n"
    )
    assert (scoped.uid, scoped.job, scoped.host, scoped.runs) == (4321, "slurm:17:2", "gpu-a.b-01", True)
    assert scoped.listed_as == f"pyxis_17_{scoped.name}"


def test_a_name_is_of_a_job() -> None:
    name = pyxis_images.name_of("8f966222ff01", {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"}, 4321, "n1", "c0ffee")
    assert [tree.job for tree in pyxis_images.parse(f"pyxis_{name}\n")] == ["slurm:17:2"]
    with pytest.raises(ContainerError, match="SLURM_JOB_ID is not set"):
        pyxis_images.name_of("8f966222ff01", {}, 0, "n1", "c0ffee")


@pytest.mark.processes
def test_an_image_is_unpacked_once_and_again_only_where_its_tree_has_gone(
    place: Path, loads: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loads()
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert loads() == first, "another job finds it"
    assert here(place) == [first]
    Path(place, f"pyxis_{first}").rmdir()
    second = loads()
    assert (here(place), first == second) == ([second], False)
    assert (place / "steps").read_text().count("--container-name=") == 2


@pytest.mark.processes
def test_half_a_tree_is_no_image(place: Path, loads: Callable[[], str], tmp_path: Path) -> None:
    (place / "fails").touch()
    with pytest.raises(ContainerError, match="cannot be unpacked by pyxis: slurmstepd: error: pyxis: No space left on device"):
        loads()
    assert here(place) == []
    assert marked_trees(tmp_path / "cache" / "images", pyxis_images.ENGINE) == set()
    (place / "fails").unlink()
    whole = loads()
    assert here(place) == [whole]


@pytest.mark.processes
def test_why_unpacking_failed_is_told_where_its_remains_cannot_be_removed_either(place: Path, loads: Callable[[], str]) -> None:
    (place / "fails").touch()
    (place / "stuck").touch()
    with pytest.raises(ContainerError, match=r"No space left on device; and what it left stays until its job has ended: .* is busy"):
        loads()


@pytest.mark.processes
def test_what_no_mark_names_goes_with_its_job(place: Path, loads: Callable[[], str], tmp_path: Path) -> None:
    """Not what runs, is another user's, or lies on another node."""
    kept, tail, own = loads(), f"8f966222ff01-{pyxis_images.host_here()}", os.geteuid()
    names = {
        "dead": f"slipway-u{own}-90001.0-{tail}-00000a",
        "lives": f"slipway-u{own}-90002.0-{tail}-00000b",
        "runs": f"slipway-u{own}-90001.0-{tail}-00000c",
        "theirs": f"slipway-u{own + 1}-90001.0-{tail}-00000d",
        "elsewhere": f"slipway-u{own}-90001.0-8f966222ff01-nowhere-00000e",
    }
    for name in (*names.values(), "90001.0"):
        (place / f"pyxis_{name}").mkdir()
    (place / f"pyxis_{names['runs']}" / "pid").write_text("77\n")
    found = reaping.ours(pyxis_images.ENGINE, [tmp_path / "cache"])
    assert {one.name for one in found} == {names["dead"], names["lives"], names["theirs"]}
    decisions = reaping.plan_reap(found, lambda asked: ["90002" in one.label("slipway.job") for one in asked], own)
    for decision in decisions:
        if decision.remove:
            reaping.remove(decision.container)
    left = {*names.values(), "90001.0", kept} - {names["dead"]}
    assert set(here(place)) == left


@pytest.mark.processes
def test_an_image_goes_with_its_tree_unless_a_container_runs_in_it(place: Path, loads: Callable[[], str], tmp_path: Path) -> None:
    name, cache = loads(), tmp_path / "cache"
    (image,) = find_images(pyxis_images.ENGINE, cache, 0)
    assert find_images("enroot", cache, 0) == (), "it is pyxis that uses the file"
    pid = place / f"pyxis_{name}" / "pid"
    pid.write_text("77\n")
    assert remove_image(image, pyxis_images.ENGINE, cache) == "a container runs in what is unpacked of it"
    pid.unlink()
    assert remove_image(image, pyxis_images.ENGINE, cache) is None
    assert (here(place), Path(image.handle).exists(), last_used(cache / "images", image.short, pyxis_images.ENGINE)) == ([], False, None)


@pytest.mark.processes
def test_an_image_whose_tree_cannot_be_removed_is_found_again(place: Path, loads: Callable[[], str], tmp_path: Path) -> None:
    name, cache = loads(), tmp_path / "cache"
    (image,) = find_images(pyxis_images.ENGINE, cache, 0)
    (place / "stuck").touch()
    assert "cannot be removed: [ERROR]" in (remove_image(image, pyxis_images.ENGINE, cache) or "")
    assert (here(place), find_images(pyxis_images.ENGINE, cache, 0)) == ([name], (image,))
    (place / "stuck").unlink()
    assert remove_image(image, pyxis_images.ENGINE, cache) is None
    assert (here(place), find_images(pyxis_images.ENGINE, cache, 0)) == ([], ())


@pytest.mark.processes
def test_the_tree_goes_too_with_an_image_that_enroot_has_started_since(place: Path, loads: Callable[[], str], tmp_path: Path) -> None:
    """Both start the same file, and one cache may serve both."""
    name, cache = loads(), tmp_path / "cache"
    mark_used(cache / "images", read_manifest(next((tmp_path / "storage").rglob("*.sqsh"))).image, "enroot")
    assert find_images(pyxis_images.ENGINE, cache, 0) == (), "it is enroot that uses the file"
    (image,) = find_images("enroot", cache, 0)
    (place / f"pyxis_{name}" / "pid").write_text("77\n")
    assert remove_image(image, "enroot", cache) == "a container runs in what is unpacked of it"
    (place / f"pyxis_{name}" / "pid").unlink()
    assert remove_image(image, "enroot", cache) is None
    assert (here(place), marked_trees(cache / "images", pyxis_images.ENGINE)) == ([], set())
