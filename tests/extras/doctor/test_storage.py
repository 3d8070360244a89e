"""Storage and cache: judged from values, and on broken file systems from mounts of the test's own."""

import errno
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.calls import call_limited
from extras.doctor import storage
from extras.doctor.types import Context, Location, worst
from tests.data_prep.staging.disks import tmpfs
from tests.data_prep.test_mounts import MOUNTS, on
from workflow.study.site import Cache, local_site


def context(tmp_path: Path, place: Location = "alone", **keys: Any) -> Context:
    site = replace(local_site(has_gpu=False), storage=tmp_path, cache=Cache(path=tmp_path / "cache"))
    return Context(site=replace(site, **keys), place=place, hostname="h", scheduler="local")


def test_storage_by_its_mount() -> None:
    old = next(mount for mount in MOUNTS if mount.source == "filer:/export/home")
    nfs = list(storage.judge_storage_mount(old, "login"))
    assert worst(nfs) == "ok"
    assert worst(storage.judge_storage_mount(on("/local"), "login")) == "note"
    assert worst(storage.judge_storage_mount(on("/local"), "job")) == "ok"
    assert worst(storage.judge_storage_mount(on("/local"), "alone")) == "ok"
    assert worst(storage.judge_storage_mount(on("/dev/shm"), "job")) == "error"
    assert worst(storage.judge_storage_mount(None, "login")) == "note"


@pytest.mark.parametrize(
    ("path", "alone", "level"),
    [
        ("/local/slipway", False, "ok"),
        ("/home/ann/cache", False, "error"),
        ("/scratch/cache", False, "error"),
        ("/scratch/cache", True, "warning"),
        ("/dev/shm/cache", False, "warning"),
        ("/merged/cache", False, "note"),
    ],
)
def test_a_cache_must_be_local(path: str, alone: bool, level: str) -> None:
    assert storage.judge_cache_mount(Path(path), on(path), alone).level == level


def test_a_cache_in_storage_is_no_cache() -> None:
    for path, level in (("/nfs/slipway/cache", "error"), ("/local/slipway", "ok"), ("$TMPDIR/x", "note")):
        found = storage.check_cache_path(context(Path("/nfs/slipway"), "login", cache=Cache(path=Path(path))))
        assert worst(found) == level


def test_a_cache_that_somebody_else_could_change(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    words = "somebody else could change the data"
    assert any(words in finding.text for finding in storage.check_cache(context(tmp_path)))
    (tmp_path / "cache").chmod(0o700)
    assert not any(words in finding.text for finding in storage.check_cache(context(tmp_path)))


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [
        (10**12, 10**6, "ok"),
        (10**12, None, "ok"),
        (10**8, 10**6, "warning"),
        (0, 10**6, "error"),
        (10**12, 0, "error"),
    ],
)
def test_room(free: int, inodes: int | None, level: str) -> None:
    assert storage.judge_room("storage", free, 10**13, inodes, "storage").level == level


def test_shared_with_the_group(tmp_path: Path) -> None:
    assert worst(storage.judge_group(stat.S_IFDIR | 0o755, "group", tmp_path)) == "warning"
    assert worst(storage.judge_group(stat.S_IFDIR | 0o2770, "group", tmp_path)) == "ok"
    assert worst(storage.judge_group(stat.S_IFDIR | 0o777, "user", tmp_path)) == "warning"
    assert worst(storage.judge_group(stat.S_IFDIR | 0o1777, "user", tmp_path)) == "ok"


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    stale = tmp_path / f"{storage.PREFIX}killed"
    stale.mkdir()
    os.utime(stale, (1, 1))
    assert worst(storage.try_storage(tmp_path)) == "ok"
    assert list(tmp_path.iterdir()) == []


def test_storage_without_hard_links_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    assert worst(storage.try_storage(tmp_path)) == "warning"


def test_storage_that_is_not_made_yet_is_not_made(tmp_path: Path) -> None:
    findings = list(storage.check_storage(context(tmp_path / "a" / "b")))
    assert any("is not there yet" in finding.text for finding in findings)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert worst(storage.check_storage(context(tmp_path / "file"))) == "error"


@pytest.mark.processes
def test_a_directory_that_is_closed_to_us(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()

    def look() -> str:
        os.setuid(65534)  # root goes everywhere
        found = (*storage.check_storage(context(closed / "a")), *storage.check_cache(context(closed)))
        return " ".join(f"{finding.level}: {finding.text}" for finding in found)

    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    said = call_limited("look", look, timeout_s=20)
    assert said.count("error: cannot be written: Permission denied") == 2, said


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 1 << 20) as small:
        (small / "big").write_bytes(bytes(1 << 20))
        findings = list(storage.check_storage(context(small)))
        assert worst(findings) == "error"
        assert any("No space left" in finding.text for finding in findings), findings
        assert [path.name for path in small.iterdir()] == ["big"]


@pytest.mark.slow
def test_a_disk_without_inodes(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "few", 1 << 24, num_inodes=2) as few:
        (few / "one").write_text("")
        assert any("no inodes are left" in finding.text for finding in storage.check_cache(context(few, cache=Cache(path=few))))


@pytest.mark.slow
def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", 1 << 20) as place:
        subprocess.run(["mount", "-o", "remount,ro", place], check=True, timeout=30)
        findings = list(storage.check_storage(context(place / "below")))
        refused = next(finding for finding in findings if finding.level == "error")
        assert "Read-only file system" in refused.text + str(findings)
