"""Where files of ours and of a user are, in a checkout of one's own, in that of a group, and in a wheel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from base.process import CODE_ROOT
from cluster import installation
from tests.nobody import NOBODY, as_nobody

USER_PLACES = {"XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in USER_PLACES.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    return tmp_path


def test_what_is_ours_is_there() -> None:
    assert installation.FROM_CHECKOUT
    files = [installation.SNAKEFILE, installation.SCHEMAS / "study.schema.json", installation.TEMPLATES / "images.yaml"]
    assert [file for file in files if not file.is_file()] == []
    assert (installation.PROFILES / "local").is_dir()


def test_a_checkout_of_ones_own_keeps_what_is_ones_own(home: Path) -> None:
    root = CODE_ROOT
    assert installation.default_storage() == root / ".slipway" / "storage"
    assert installation.default_cache() == root / ".slipway" / "cache"
    assert installation.own_sites() == root / "config" / "sites"
    assert installation.sites_directories() == (root / "config" / "sites", home / "config" / "slipway" / "sites")


def _said(rooms: Path, code: str) -> list[str]:
    """The lines that `code` prints where the rooms that it needs lie in `rooms`."""
    for room in ("base", "cluster"):
        shutil.copytree(CODE_ROOT / room, rooms / room)
    return subprocess.run([sys.executable, "-c", code], cwd=rooms, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.processes
def test_who_may_not_write_in_a_checkout_has_places_of_ones_own(home: Path, tmp_path: Path) -> None:
    """Whether a user may write is asked for the real user, and root's files are read for the effective one."""
    (tmp_path / "group" / ".slipway").mkdir(parents=True)
    (tmp_path / "group" / ".slipway").chmod(0o555)
    code = (
        f"import os; os.geteuid() or os.setreuid({NOBODY}, 0)\nfrom cluster import installation as i\n"
        "print(i.default_storage(), i.default_cache(), i.own_sites(), *i.sites_directories(), sep='\\n')"
    )
    sites = home / "config" / "slipway" / "sites"
    wanted = [home / "data" / "slipway" / "storage", home / "cache" / "slipway", sites, sites, tmp_path / "group" / "config" / "sites"]
    assert _said(tmp_path / "group", code) == list(map(str, wanted))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")
@pytest.mark.parametrize("kind", ["directory", "link"])
def test_results_do_not_go_where_another_account_has_put_storage(tmp_path: Path, kind: str) -> None:
    tmp_path.chmod(0o1777)
    storage = tmp_path / "storage"
    storage.mkdir(0o777) if kind == "directory" else storage.symlink_to(tmp_path)
    assert installation.default_storage(tmp_path) == storage
    os.chown(storage, NOBODY, NOBODY, follow_symlinks=False)
    assert installation.default_storage(tmp_path) == installation.default_storage()
    os.chown(tmp_path, NOBODY, NOBODY)
    assert installation.default_storage(tmp_path) == storage, "of who owns the folder, and could change the study too"


@pytest.mark.processes
def test_results_go_beside_a_study_where_one_may_write(tmp_path: Path) -> None:
    def storage(folder: str) -> str:
        return str(as_nobody(tmp_path, lambda: str(installation.default_storage(Path(folder)))))

    assert storage(".") == "storage"
    (tmp_path / "group").mkdir(0o555)
    assert storage("group").endswith("/storage")
    assert storage("group") != "group/storage"
    (tmp_path / "storage").mkdir(0o555)
    assert storage(".") != "storage"


@pytest.mark.processes
def test_a_checkout_is_ones_own_where_one_may_write(tmp_path: Path) -> None:
    def own(rooms: str) -> str:
        return str(as_nobody(tmp_path, lambda: str(installation.own_checkout(Path(rooms)))))

    assert own(".") == "."
    (tmp_path / "group").mkdir(0o555)
    assert own("group") == "None"
    (tmp_path / ".slipway").mkdir(0o555)
    assert own(".") == "None"
    (tmp_path / "group").chmod(0o755)
    (tmp_path / "group" / ".slipway").mkdir()
    (tmp_path / "group" / ".slipway").chmod(0o777)
    (tmp_path / "group").chmod(0o555)
    assert own("group") == "group"


@pytest.mark.processes
def test_a_wheel_is_nobodys_own_and_knows_the_sites_of_its_group(home: Path, tmp_path: Path) -> None:
    """The module as it lies in site-packages, beside what a wheel carries."""
    rooms = tmp_path / "site-packages"
    (rooms / "workflow" / "installed").mkdir(parents=True)
    code = "from cluster import installation as i; print(i.SNAKEFILE, i.default_storage(), *i.sites_directories(), sep='\\n')"
    carried = rooms / "workflow" / "installed"
    own, group = home / "config" / "slipway" / "sites", Path(sys.prefix, "etc", "slipway", "sites")
    wanted = [carried / "Snakefile", home / "data" / "slipway" / "storage", own, group, carried / "config" / "sites"]
    assert _said(rooms, code) == list(map(str, wanted))
