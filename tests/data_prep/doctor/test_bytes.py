"""Storage and cache: mounts from texts, broken file systems from mounts of the test's own."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from base.finding import worst
from base.limited import call_limited
from data_prep.doctor import trial
from data_prep.doctor.trial import CachePlace, Room, Trial, local_places, shared_places
from data_prep.mounts import Mount, mount_of, parse_mountinfo
from tests.data_prep.staging.disks import tmpfs

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
61 27 0:52 /home /home rw,nosuid shared:1 - nfs4 filer:/export/home rw,vers=4.2,acregmin=3,acdirmax=120,hard
62 27 0:53 / /scratch rw,noatime shared:2 master:3 - lustre 10.1.0.1@o2ib:/scratch rw,flock
63 27 8:1 / /local rw - xfs /dev/nvme0n1 rw,noquota
64 27 0:60 / /dev/shm rw - tmpfs tmpfs rw,size=1000k
65 27 8:17 /jobs/4711/.4711 /tmp rw - ext4 /dev/sdb1 rw
66 27 0:61 / /remote\040data rw - fuse.sshfs me@host:/data rw
67 27 8:18 /tmp/systemd-private-12ab-x.service/tmp /var/tmp rw - ext4 /dev/sdb2 rw
68 61 0:70 / /home rw - nfs4 newer:/export/home rw,noac
69 27 0:71 / /merged rw - overlay overlay rw
a torn line
"""
MOUNTS = parse_mountinfo(MOUNTINFO)


def on(path: str) -> Mount:
    mount = mount_of(MOUNTS, path)
    assert mount is not None
    return mount


def place(path: str, **more: object) -> CachePlace:
    return CachePlace(path=Path(path), place=Path(path), mount=on(path), alone=False, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "source", "kind"),
    [
        ("/home/ann", "newer:/export/home", "network"),  # mounted over the older one
        ("/scratch", "10.1.0.1@o2ib:/scratch", "network"),
        ("/scratchpad", "/dev/vda", "local"),
        ("/local/x/y", "/dev/nvme0n1", "local"),
        ("/dev/shm/x", "tmpfs", "memory"),
        ("/remote data/x", "me@host:/data", "network"),
        ("/merged", "overlay", "other"),
        ("/", "/dev/vda", "local"),
    ],
)
def test_which_file_system_a_path_lies_on(path: str, source: str, kind: str) -> None:
    assert (on(path).source, on(path).kind) == (source, kind)


def test_storage_by_its_mount() -> None:
    old = next(mount for mount in MOUNTS if mount.source == "filer:/export/home")
    nfs = list(trial.judge_storage_mount(old, False, False))
    assert worst(nfs) == "ok"
    assert "up to 120 s" in nfs[1].text
    assert "noac" in list(trial.judge_storage_mount(on("/home"), False, False))[1].text
    assert worst(trial.judge_storage_mount(on("/local"), False, False)) == "note"
    assert worst(trial.judge_storage_mount(on("/local"), False, True)) == "ok"
    assert worst(trial.judge_storage_mount(on("/local"), True, False)) == "ok"
    assert worst(trial.judge_storage_mount(on("/dev/shm"), False, True)) == "error"
    assert worst(trial.judge_storage_mount(None, False, False)) == "note"


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
    assert worst(trial.judge_cache_mount(replace(place(path), alone=alone))) == level


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("/local/slipway", {}, None),
        ("/local/4711/slipway", {"environ": {"SLURM_JOB_ID": "4711"}}, "the job's id"),
        ("/local/4711/slipway", {"environ": {"PBS_JOBID": "4711.server"}}, "the job's id"),
        ("/local/tmpdir/slipway", {"environ": {"TMPDIR": "/local/tmpdir"}}, "below $TMPDIR"),
        ("/tmp/slipway", {"environ": {"TMPDIR": "/tmp", "SLURM_JOB_ID": "4711"}}, "a directory of its own"),
        ("/var/tmp/slipway", {}, "PrivateTmp"),
        ("/dev/shm/slipway", {"private_tmp": True}, "job_container/tmpfs"),
        ("/tmp/slipway", {}, "some sites clear it"),
    ],
)
def test_a_cache_must_survive_the_job(path: str, more: dict[str, object], words: str | None) -> None:
    found = list(trial.judge_survival(place(path, **more)))
    assert [words in finding.text for finding in found] == ([True] if words else [])
    assert worst(trial.judge_survival(replace(place(path, **more), alone=True))) == "ok"


def test_a_cache_in_storage_is_no_cache() -> None:
    assert worst(trial.check_cache_path(Path("/nfs/slipway/cache"), Path("/nfs/slipway"), False)) == "error"
    assert worst(trial.check_cache_path(Path("/tmp/slipway"), Path("/nfs/slipway"), True)) == "warning"
    assert worst(trial.check_cache_path(Path("/local/slipway"), Path("/nfs/slipway"), True)) == "ok"


def test_whose_cache_it_is() -> None:
    ours = {"datasets": (7, stat.S_IFDIR | 0o700)}
    assert worst(trial.judge_owner(ours, 7)) == "ok"
    assert worst(trial.judge_owner(ours, 8)) == "error"
    assert worst(trial.judge_owner({"datasets": (7, stat.S_IFDIR | 0o777)}, 7)) == "error"
    assert worst(trial.judge_owner({"datasets": (7, stat.S_IFDIR | 0o2770)}, 8)) == "ok"


@pytest.mark.parametrize(
    ("room", "level"),
    [
        (Room(free_bytes=10**12, total_bytes=10**13, inodes=10**6), "ok"),
        (Room(free_bytes=10**12, total_bytes=10**13, inodes=None), "ok"),
        (Room(free_bytes=5 * 10**9, total_bytes=10**13, inodes=10**6), "note"),
        (Room(free_bytes=10**8, total_bytes=10**13, inodes=10**6), "warning"),
        (Room(free_bytes=0, total_bytes=10**13, inodes=10**6), "error"),
        (Room(free_bytes=10**12, total_bytes=10**13, inodes=0), "error"),
        (Room(free_bytes=10**12, total_bytes=10**13, inodes=50), "warning"),
    ],
)
def test_room(room: Room, level: str) -> None:
    assert worst(trial.judge_room("storage", room, "storage")) == level


GOOD = Trial(
    exclusive=True, replaces=True, locks=True, skew_s=0.0, num_bytes=1 << 26, write_bytes_per_s=1e9, read_bytes_per_s=1e9, direct=True
)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "ok"),
        ({"exclusive": False}, "error"),
        ({"replaces": False}, "error"),
        ({"locks": None}, "note"),
        ({"locks": False}, "note"),
        ({"read_bytes_per_s": 1e6}, "note"),
    ],
)
def test_promises(changes: dict[str, object], level: str) -> None:
    assert worst(trial.judge_trial(replace(GOOD, **changes))) == level  # type: ignore[arg-type]


def test_clock_of_storage() -> None:
    assert [worst(trial.judge_clock(replace(GOOD, skew_s=skew))) for skew in (0.3, -5.0, 600.0)] == ["ok", "note", "warning"]
    assert "5.0 s behind" in next(trial.judge_clock(replace(GOOD, skew_s=-5.0))).text
    assert trial._skew(100.5, 100.4, 100.6) == 0
    assert trial._skew(100.0, 100.4, 100.6) == 0  # whole seconds only
    assert trial._skew(103.5, 100.4, 100.5) == 3.0
    assert trial._skew(90.5, 100.4, 100.6) == pytest.approx(-9.88)


def test_shared_with_the_group(tmp_path: Path) -> None:
    assert worst(trial.judge_group(stat.S_IFDIR | 0o755, "group", tmp_path)) == "warning"
    assert worst(trial.judge_group(stat.S_IFDIR | 0o2770, "group", tmp_path)) == "ok"
    assert worst(trial.judge_group(stat.S_IFDIR | 0o777, "user", tmp_path)) == "warning"
    assert worst(trial.judge_group(stat.S_IFDIR | 0o1777, "user", tmp_path)) == "ok"


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    stale = tmp_path / f"{trial.PREFIX}killed"
    stale.mkdir()
    os.utime(stale, (1, 1))
    found = trial.try_out(tmp_path, most_bytes=3 << 20)
    assert (found.exclusive, found.replaces, found.locks, found.num_bytes) == (True, True, True, 3 << 20)
    assert abs(found.skew_s) < 1
    assert list(tmp_path.iterdir()) == []


def test_storage_that_is_not_made_yet_is_not_made(tmp_path: Path) -> None:
    findings = trial.check_storage(tmp_path / "a" / "b", "user", True, False)
    assert any("is not there yet" in finding.text for finding in findings)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert worst(trial.check_storage(tmp_path / "file", "user", True, False)) == "error"


def test_why_it_cannot_be_written(tmp_path: Path) -> None:
    for number, words in ((errno.EROFS, "read-only"), (errno.EDQUOT, "quota"), (errno.EACCES, "ls -ld"), (errno.EIO, "ask what is wrong")):
        finding = trial.judge_refusal("storage", OSError(number, os.strerror(number)), tmp_path, on("/local"), "storage")
        assert finding.level == "error"
        assert words in finding.advice


@pytest.mark.processes
def test_a_directory_that_is_closed_to_us(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()

    def look() -> str:
        os.setuid(65534)  # root goes everywhere
        found = (*trial.check_storage(closed / "a", "user", True, False), *trial.check_cache(closed / "b", None, True, False))
        return " ".join(f"{finding.level}: {finding.text}" for finding in found)

    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    said = call_limited("look", look, timeout_s=20)
    assert said.count("error: cannot be written: Permission denied") == 2, said


def test_places_that_are_there(tmp_path: Path) -> None:
    found = shared_places({"SCRATCH": str(tmp_path), "WORK": str(tmp_path / "missing"), "PROJECT": "relative", "HOME": "/"})
    assert found[0] == (tmp_path, "$SCRATCH")
    assert all(path.is_absolute() and path.is_dir() for path in local_places())


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 1 << 20) as small:
        (small / "big").write_bytes(b"x" * ((1 << 20) - 4096))
        findings = trial.check_storage(small, "user", True, False)
        assert worst(findings) == "error"
        assert any("No space left" in finding.text for finding in findings), findings
        assert [path.name for path in small.iterdir()] == ["big"]


@pytest.mark.slow
def test_a_disk_without_inodes(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "few", 1 << 24, num_inodes=2) as few:
        (few / "one").write_text("")
        assert any("no inodes are left" in finding.text for finding in trial.check_cache(few, None, True, False))


@pytest.mark.slow
def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", 1 << 20) as place:
        subprocess.run(["mount", "-o", "remount,ro", place], check=True, timeout=30)
        findings = trial.check_storage(place / "below", "user", True, False)
        refused = next(finding for finding in findings if finding.level == "error")
        assert "Read-only file system" in refused.text + str(findings)
