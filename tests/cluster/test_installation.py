"""Where files of ours and of a user are, in a checkout of one's own, in that of a group, and in a wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from base.rooms import ROOMS
from cluster import installation

USER_PLACES = {"XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in USER_PLACES.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    return tmp_path


def test_what_is_ours_is_there() -> None:
    assert installation.FROM_CHECKOUT
    files = [installation.SNAKEFILE, installation.SCHEMAS / "study.schema.json", installation.TEMPLATES / "study.yaml"]
    assert [file for file in files if not file.is_file()] == []
    assert (installation.PROFILES / "local").is_dir()


def test_a_checkout_of_ones_own_keeps_what_is_ones_own(home: Path) -> None:
    root = ROOMS
    assert installation.default_storage() == root / ".slipway" / "storage"
    assert installation.default_cache() == root / ".slipway" / "cache"
    assert installation.own_sites() == root / "config" / "sites"
    assert installation.sites_directories() == (root / "config" / "sites", home / "config" / "slipway" / "sites")


def test_who_may_not_write_in_a_checkout_has_places_of_ones_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "own_checkout", lambda: None)
    assert installation.default_storage() == home / "data" / "slipway" / "storage"
    assert installation.default_cache() == home / "cache" / "slipway"
    assert installation.own_sites() == home / "config" / "slipway" / "sites"
    assert installation.sites_directories() == (home / "config" / "slipway" / "sites", ROOMS / "config" / "sites")


def test_a_checkout_is_ones_own_where_one_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "ROOMS", tmp_path)
    assert installation.own_checkout() == tmp_path
    monkeypatch.setattr(installation.os, "access", lambda path, _mode: path != tmp_path / ".slipway")
    assert installation.own_checkout() == tmp_path
    (tmp_path / ".slipway").mkdir()
    assert installation.own_checkout() is None


def test_a_wheel_is_nobodys_own_and_knows_the_sites_of_its_group(home: Path, tmp_path: Path) -> None:
    """The module as it lies in site-packages, beside what a wheel carries."""
    rooms = tmp_path / "site-packages"
    (rooms / "workflow" / "installed").mkdir(parents=True)
    for room in ("base", "cluster"):
        shutil.copytree(ROOMS / room, rooms / room)
    code = "from cluster import installation as i; print(i.SNAKEFILE, i.default_storage(), *i.sites_directories(), sep='\\n')"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=rooms, capture_output=True, text=True, check=True)
    carried = rooms / "workflow" / "installed"
    own, group = home / "config" / "slipway" / "sites", Path(sys.prefix, "etc", "slipway", "sites")
    wanted = [carried / "Snakefile", home / "data" / "slipway" / "storage", own, group, carried / "config" / "sites"]
    assert done.stdout.splitlines() == list(map(str, wanted))
