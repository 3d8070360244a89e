"""`slipway reap` on a node whose engine is apptainer: what is listed, what goes, what stays. With daemons: tests/slurm."""

import os
import time
from pathlib import Path

import pytest

from base.jsonfile import publish_json, read_json
from containers.images.archiving import archive
from containers.images.last_use import locked
from containers.images.loading import load
from containers.images.pinning import pin
from tests.data_prep.staging.disks import immutable
from tests.workflow.commands.conftest import House
from workflow.run.node.workdir import hold

DAY_S = 86400.0


@pytest.fixture
def engine(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client of another engine is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    house.site.write_text(f"{house.site.read_text()}engine: apptainer\n")


def loaded(house: House, content: str, age_days: float) -> Path:
    """A SIF in the cache that a run used so long ago."""
    sif, cache = house.root / f"{content}.sif", house.root / "cache"
    sif.write_text(content)
    load(archive(pin(str(sif), "apptainer"), house.root / "storage"), "apptainer", cache)
    found = max((cache / "images").glob("*.sif"), key=lambda path: path.stat().st_ctime_ns)
    mark = found.with_name(f"{found.stem}.apptainer.json")
    publish_json(mark, {**read_json(mark), "used": time.time() - age_days * DAY_S})
    return found


@pytest.mark.usefixtures("engine")
def test_images_are_listed_least_recently_used_first_and_go_only_when_asked(house: House) -> None:
    new, old, oldest = (loaded(house, word, age) for word, age in (("new", 6), ("old", 8), ("oldest", 30)))
    (unmarked := new.with_name("0123456789ab.sif")).write_bytes(b"squashfs")
    said = house("reap", "--images")
    assert said.code == 0, said.err
    assert [line.split()[1] for line in said.out.splitlines() if line.startswith("image ")] == [unmarked.stem, oldest.stem, old.stem]
    assert "0123456789ab.sif), 8 B, used by no run that left a mark: would be removed by --remove\n" in said.out
    assert said.out.count("would be removed by --remove") == 3
    assert "apptainer: 3 images of Slipway not used for 7 days" in said.out
    assert all(path.exists() for path in (new, old, oldest, unmarked))
    with locked(old.with_suffix(".lock"), "load", 0.0):
        said = house("reap", "--images", "--remove")
    assert said.code == 0, said.err
    (line,) = [line for line in said.out.splitlines() if line.startswith(f"image {oldest.stem} ({oldest}), 6 B, last used ")]
    assert line.endswith(" ago: removed")
    assert f"stays: remove image {old.stem}: process {os.getpid()} (load, since " in said.out
    assert [path.exists() for path in (new, old, oldest, unmarked)] == [True, True, False, False]


@pytest.mark.usefixtures("engine")
def test_halves_of_archives_go_unless_their_load_lives(house: House) -> None:
    place = loaded(house, "image", 0).parent
    dead, living = (place / f".{short}.tar.zst.part-{short}" for short in ("0" * 12, "1" * 12))
    for part in (dead, living):
        part.write_text("half")
    with locked(place / f"{'1' * 12}.lock", "load", 0.0):
        assert f"{dead}, half an archive: would be removed by --remove: its load was killed" in house("reap", "--images").out
        assert dead.exists()
        assert f"{dead}, half an archive: removed" in house("reap", "--images", "--remove").out
    assert not dead.exists()
    assert living.exists()


@pytest.mark.processes
def test_an_engine_that_does_not_answer_is_named_and_matters_where_it_is_the_sites(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = house("reap", "--images")
    assert said.code == 0, said.err
    assert "docker: " in said.out
    assert "Cannot connect to the Docker daemon" in said.out
    house.site.write_text(f"{house.site.read_text()}engine: docker\n")
    said = house("reap", "--images")
    assert said.code == 16
    assert "Cannot connect to the Docker daemon" in said.err


@pytest.mark.processes
@pytest.mark.usefixtures("engine")
def test_what_cannot_be_removed_is_named_and_all_else_goes(house: House) -> None:
    runs = house.root / "cache" / "local-0" / "runs"
    for name in ("one", "two", "three"):
        (runs / name / "out").mkdir(parents=True)
        hold(runs / name).close()
    with immutable(runs / "two" / "out"):
        said = house("reap", "--remove")
        assert (said.code, "Traceback" in said.err) == (22, False)
        assert [path.name for path in runs.iterdir() if path.is_dir()] == ["two"]
        for name, end in (("one", "removed"), ("three", "removed"), ("two", "stays")):
            assert f"work directory {name}: {end}: its run is dead" in said.out
        assert f"work directory two stays: {runs}/two/out cannot be removed (Operation not permitted)" in said.err
        assert f"chattr -R -f -ia {runs}/two; rm -r {runs}/two" in said.err
        assert "two: would be removed by --remove" in house("reap").out
    assert house("reap", "--remove").code == 0
    assert list(runs.iterdir()) == []
