"""Images that pyxis has unpacked: by name, once, and who removes them. Enroot and srun are stand-ins, whose trees are directories of one
place; with the real ones: tests/slurm/test_pyxis.py."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from base.errors import ContainerError
from containers.images import pyxis_images
from containers.images.archiving import archive
from containers.images.last_use import last_used, mark_used
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
    text = json.loads(CAPTURED.read_text())["stdout"]
    name, other = "slipway-u0-8f966222ff01-n1-00c0fe", "slipway-u4321-8f966222ff01-gpu-a.b-01-c0ffee"
    first, second = (line.split()[0] for line in text.splitlines() if line.startswith("pyxis_slipway"))
    found = pyxis_images.parse(text.replace(first, f"pyxis_{name}").replace(second, f"pyxis_17_{other}"))
    assert found == {name: (f"pyxis_{name}", False), other: (f"pyxis_17_{other}", True)}


@pytest.mark.processes
def test_an_image_is_unpacked_once_and_again_only_where_its_tree_has_gone(
    place: Path, loads: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loads()
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert loads() == first, "another job finds it"
    assert here(place) == [first]
    Path(place, f"pyxis_{first}").rmdir()
    assert loads() == first
    assert here(place) == [first]
    assert (place / "steps").read_text().count("--container-name=") == 2


@pytest.mark.processes
def test_half_a_tree_is_no_image(place: Path, loads: Callable[[], str], tmp_path: Path) -> None:
    (place / "fails").touch()
    with pytest.raises(ContainerError, match="cannot be unpacked by pyxis: slurmstepd: error: pyxis: No space left on device"):
        loads()
    assert here(place) == []
    (place / "stuck").touch()
    with pytest.raises(ContainerError, match="No space left on device"):
        loads()
    assert (len(here(place)), list((tmp_path / "cache" / "images").glob("*.json"))) == (1, []), "as a killed load leaves it"
    for name in ("fails", "stuck"):
        (place / name).unlink()
    whole = loads()
    assert here(place) == [whole]
    assert (place / "steps").read_text().count("--container-name=") == 3


@pytest.mark.processes
@pytest.mark.parametrize("engine", [pyxis_images.ENGINE, "enroot"])
def test_an_image_goes_with_its_tree_unless_a_container_runs_in_it(
    place: Path, loads: Callable[[], str], tmp_path: Path, engine: str
) -> None:
    """Enroot starts the same file, and one cache may serve both."""
    name, cache = loads(), tmp_path / "cache"
    if engine == "enroot":
        mark_used(cache / "images", read_manifest(next((tmp_path / "storage").rglob("*.sqsh"))).image, engine)
    (image,) = find_images(engine, cache, 0)
    other = "enroot" if engine == pyxis_images.ENGINE else pyxis_images.ENGINE
    assert find_images(other, cache, 0) == (), "whoever has used the file last"
    pid = place / f"pyxis_{name}" / "pid"
    pid.write_text("77\n")
    assert "a container runs in " in (remove_image(image, engine, cache) or "")
    pid.unlink()
    (place / "stuck").touch()
    assert "cannot be removed: [ERROR]" in (remove_image(image, engine, cache) or "")
    assert (here(place), find_images(engine, cache, 0)) == ([name], (image,))
    (place / "stuck").unlink()
    assert remove_image(image, engine, cache) is None
    assert (here(place), Path(image.handle).exists(), last_used(cache / "images", image.short, pyxis_images.ENGINE)) == ([], False, None)
