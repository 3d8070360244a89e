"""The wheel in an environment of its own: all that it needs is inside, and whoever uses it writes nothing there."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from workflow.commands.init import BESIDE

ROOT = Path(__file__).parents[1]
ROOMS = ("base", "cluster", "containers", "data_prep", "extras", "slipway", "workflow")
OURS = ("slipway", "__editable__", "__pycache__")
STUDY = """
study: tiny
datasets: {toy: {source: synthetic, size: 32, samples: 64, classes: 2, shards: 2}}
base: {dataset: toy, model: lenet, batch_size: 8, steps: {warmup: 1, measured: 3}, repeats: 1}
axes: {nodes: [1, 2]}
baseline: {nodes: 1}
"""
pytestmark = pytest.mark.slow


def tracked(*below: str) -> list[str]:
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *below]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of an earlier build gets in."""
    place = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / "source" / name)
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), "./source"]
    subprocess.run(argv, cwd=place, check=True, capture_output=True)
    (found,) = place.glob("*.whl")
    return found


def test_every_file_of_the_rooms_is_in_it(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    rules = {name for name in tracked(*ROOMS) if name.endswith(".smk")}
    assert {*tracked(*ROOMS), "data_prep/reader/libpixels.so"} - rules <= inside
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl" if os.uname().machine == "x86_64" else ".whl")
    carried = {"Snakefile", *rules, *tracked("profiles", "config"), *chain(*map(dict.values, BESIDE.values()))}
    assert {f"workflow/installed/{name}" for name in carried} == {name for name in inside if "/installed/" in name}


class Place:
    """An environment that nobody may write to, an empty HOME, and a directory of one's own."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.environment, self.home, self.work = root / "environment", root / "home", root / "work"
        self.home.mkdir()
        self.work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.environment)], check=True)
        self.packages = next(self.environment.glob("lib/python*/site-packages"))
        dependencies = root / "dependencies"
        dependencies.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if entry.suffix != ".pth" and not entry.name.startswith(OURS):
                (dependencies / entry.name).symlink_to(entry)
        (self.packages / "dependencies.pth").write_text(f"{dependencies}\n")
        pip = [sys.executable, "-m", "pip", "--python", str(self.environment / "bin" / "python"), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
        self._mode(-0o222)

    def _mode(self, change: int) -> None:
        for path in [self.environment, *self.environment.rglob("*")]:
            if not path.is_symlink():
                mode = path.stat().st_mode & 0o7777
                path.chmod(mode & change if change < 0 else mode | change)

    def close(self) -> None:
        """So that it can be removed."""
        self._mode(0o200)

    def content(self) -> dict[str, str]:
        """Every file of the environment with its digest."""
        files = (path for path in self.environment.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def __call__(self, *words: str, code: int = 0, **environ: str) -> str:
        """What the command prints, as one without privileges types it."""
        plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
        env = {"HOME": str(self.home), "PATH": f"{self.environment}/bin:/usr/bin:/bin", **environ}
        argv = [*plain, str(self.environment / "bin" / words[0]), *words[1:]]
        done = subprocess.run(argv, cwd=self.work, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The same for all: what one of them wrote into it would be noticed by the last."""
    made = Place(tmp_path_factory.mktemp("place"), wheel)
    yield made
    made.close()


def test_a_study_from_plan_to_tables(place: Place) -> None:
    before = place.content()
    (place.work / "tiny.yaml").write_text(STUDY)
    place("slipway", "--help")
    assert "2 runs" in place("slipway", "plan", "tiny.yaml")
    assert str(place.work / "storage") in place("slipway", "dataset", "build", "--study", "tiny.yaml")
    place("slipway", "doctor")
    said = place("slipway", "doctor", "--write-site", "mine")
    assert str(place.home / ".config/slipway/sites/mine.yaml") in said
    assert "next: slipway doctor --site mine\n" in said
    assert "2 of 2 runs ok" in place("slipway", "run", "tiny.yaml", "--site", "mine")
    assert "2 of 2 runs ok" in place("slipway", "tables", "tiny.yaml", "--site", "mine", "--strict")
    assert "rank-0.log" in place("slipway", "logs", "lenet-synthetic-b8-n1", "--study", "tiny.yaml", "--site", "mine")
    place("slipway", "init", "new")
    for template in ("my-script", "language-model"):  # with files of their own
        place("slipway", "init", template, "--template", template)
        assert "12 runs" in place("slipway", "plan", f"{template}/study.yaml")
    assert "lenet-digits-b32-n2" in place("slipway", "plan", "new/study.yaml", "--site", "new/site.yaml")
    assert (place.home / ".local/share/slipway/storage/results/tiny/report.html").is_file()
    assert place.content() == before


def test_modules_of_ours_are_nowhere_on_the_path_of_ranks(place: Place, tmp_path: Path) -> None:
    """Where a bare rank sees them, it is because its interpreter has them installed: never by PYTHONPATH or its working directory."""
    import json

    (place.work / "tiny.yaml").write_text(STUDY)
    plan: Any = json.loads(place("slipway", "plan", "tiny.yaml", "--cell", "lenet-synthetic-b8-n1", "--site", "local", "--json"))
    found = [env for env in _environments(plan) if "PYTHONPATH" in env and "SLIPWAY_CELL" in env]
    assert found
    assert [env["PYTHONPATH"] for env in found if env["PYTHONPATH"] != env["SLIPWAY_LIB"]] == []


def _environments(value: Any) -> Iterator[dict[str, str]]:
    if isinstance(value, dict):
        if "env" in value:
            yield dict(value["env"])
        for inner in value.values():
            yield from _environments(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _environments(inner)
