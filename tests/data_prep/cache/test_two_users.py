"""A second user of the node, who is there first: neither the cache nor the locks of runs are his."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from base.calls import call_limited
from base.errors import StagingError
from base.publish import remove_tree
from cluster.runtime import runtime_directory
from data_prep.staging import stage
from tests.data_prep.reader.small import random_dataset

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root adds users")]


class User(NamedTuple):
    name: str
    uid: int

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in a process of this user."""

        def inside() -> Any:
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)
            return function(*arguments)

        return call_limited(f"as {self.name}", inside, timeout_s=60)

    def can(self, *argv: str | Path) -> bool:
        """Whether a command of this user succeeds."""
        return bool(self.do(lambda: subprocess.run(argv, cwd="/", capture_output=True, check=False).returncode == 0))


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    if shutil.which("useradd") is None:
        pytest.skip("needs useradd")
    found = []
    try:
        for name in (f"slw-victim-{os.getpid()}", f"slw-other-{os.getpid()}"):
            subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True, capture_output=True)
            uid = int(subprocess.run(["id", "-u", name], check=True, capture_output=True, text=True).stdout)
            found.append(User(name, uid))
        yield found[0], found[1]
    finally:
        for user in found:
            subprocess.run(["userdel", user.name], check=False, capture_output=True)


@pytest.fixture
def place() -> Iterator[Path]:
    """Where everybody makes names, below directories that everybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="slipway-test-"))
    path.chmod(0o1777)
    yield path
    remove_tree(path)


@pytest.fixture
def dataset(place: Path) -> Path:
    found = random_dataset(place / "storage", [5000])
    for path in (place / "storage", *(place / "storage").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return found


def staged(dataset: Path, cache: Path) -> str:
    return str(stage(dataset, cache).root)


@pytest.mark.parametrize("mode", ["0777", "0755", "1777", "2770"])
def test_a_cache_that_a_stranger_made_first_is_not_used(users: tuple[User, User], place: Path, dataset: Path, mode: str) -> None:
    victim, stranger = users
    cache = place / "slipway-victim"
    assert stranger.can("mkdir", "-m", mode, cache)
    with pytest.raises(StagingError) as error:
        victim.do(staged, dataset, cache)
    assert f"{cache} (of uid {stranger.uid}, gid {stranger.uid}, mode {mode}) is somebody else's" in str(error.value)
    assert "set cache.path of the site file" in str(error.value)
    assert list(cache.iterdir()) == []


def test_a_way_to_the_cache_that_a_stranger_made_first_is_not_taken(users: tuple[User, User], place: Path, dataset: Path) -> None:
    victim, stranger = users
    assert stranger.can("mkdir", "-m", "777", place / "slipway-victim")
    with pytest.raises(StagingError, match="is somebody else's, made where everybody can make names"):
        victim.do(staged, dataset, place / "slipway-victim" / "cache")
    assert list((place / "slipway-victim").iterdir()) == []


def test_a_link_that_a_stranger_planted_is_not_followed(users: tuple[User, User], place: Path, dataset: Path) -> None:
    victim, stranger = users
    assert victim.can("mkdir", "-m", "700", place / "home")
    assert stranger.can("ln", "-s", place / "home", place / "slipway-victim")
    with pytest.raises(StagingError, match="somebody else's"):
        victim.do(staged, dataset, place / "slipway-victim")
    assert list((place / "home").iterdir()) == []


def test_a_cache_of_one_s_own_works_where_everybody_makes_names(users: tuple[User, User], place: Path, dataset: Path) -> None:
    victim, stranger = users
    assert victim.do(staged, dataset, place / "slipway-victim").startswith(str(place / "slipway-victim"))
    assert (place / "slipway-victim").stat().st_mode & 0o777 == 0o700
    assert not stranger.can("mv", place / "slipway-victim", place / "moved")


def test_locks_whose_name_a_stranger_took_are_elsewhere_and_the_same_for_all_runs(users: tuple[User, User], place: Path) -> None:
    victim, stranger = users
    taken = place / f"slipway-{victim.uid}"

    def where() -> str:
        return str(victim.do(lambda: str(runtime_directory(f"{place}/slipway-{{uid}}", f"{place}/other-{{uid}}"))))

    assert stranger.can("mkdir", "-m", "755", taken)
    first = where()
    assert first == str(place / f"other-{victim.uid}")
    assert stranger.can("rmdir", taken)
    assert where() == first
    assert not stranger.can("rm", "-r", first)
