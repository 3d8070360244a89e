import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from base.errors import LeaseError, StagingError
from cluster.holder import holder_of
from data_prep.cache.entries import ls, rm
from data_prep.cache.eviction import evict, sweep
from data_prep.cache.layout import open_cache
from data_prep.cache.lock import Lock, as_user, describe, is_alive, live_leases, release, release_all, this_process, write_lease
from data_prep.staging import StageOptions, stage
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.disks import idle_process, immutable

QUICK = StageOptions(patience_s=0.0)


@pytest.mark.processes
def test_a_process_is_known_by_pid_start_and_boot() -> None:
    me = this_process()
    assert is_alive(me)
    assert not is_alive({**me, "start_time": me["start_time"] + 1})
    assert not is_alive({**me, "boot_id": "another boot"})
    assert not is_alive({**me, "pid": 2**22 + 5})
    with idle_process() as pid:
        other = as_user(holder_of(pid, "", "", 0), "run")
        assert is_alive(other)
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(other)  # a zombie has ended


def test_a_process_of_another_pid_namespace_may_live() -> None:
    me = this_process()
    elsewhere = {**me, "pid": 2**22 + 5, "pid_namespace": "pid:[1]"}
    assert is_alive(elsewhere)
    assert not is_alive({**elsewhere, "boot_id": "another boot"})
    assert not is_alive({key: value for key, value in elsewhere.items() if key != "pid_namespace"})


def test_what_cannot_be_judged_counts_as_alive() -> None:
    assert is_alive({})
    assert is_alive({"scheduler": "slurm", "job_id": "17"})
    assert is_alive({"pid": "garbage"})
    assert describe({}) == "an unknown holder"
    assert describe({"run_id": "r1", "scheduler": "slurm", "job_id": "17", "pid": 5, "uid": 12345}) == "run r1, slurm 17, pid 5, uid 12345"


def staged(tmp_path: Path, name: str = "bytes", size: int = 20_000) -> str:
    return stage(random_dataset(tmp_path / "storage", [size], name=name), tmp_path / "cache", options=QUICK).root.name


def lease(cache: Path, name: str, holder: Mapping[str, Any]) -> str:
    return write_lease(open_cache(cache), name, holder)


def test_all_that_a_holder_has_is_given_back_and_what_the_dead_had(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), tmp_path / "cache"
    ours, other = {**this_process(), "run_id": "ours"}, {"scheduler": "slurm", "job_id": "17"}
    for holder in (ours, ours, other, {**ours, "run_id": "dead", "pid": 2**22 - 1}):
        lease(cache, name, holder)
    lease(cache, "a.tar-0123456789ab", ours)
    release_all(cache, ours, name)
    assert [dict(lease.holder) for lease in live_leases(open_cache(cache), name)] == [other]
    assert len(list((cache / "leases" / name).iterdir())) == 1
    assert live_leases(open_cache(cache), "a.tar-0123456789ab")
    release_all(cache, ours)
    assert not live_leases(open_cache(cache), "a.tar-0123456789ab")
    assert [dict(lease.holder) for lease in live_leases(open_cache(cache), name)] == [other]
    release_all(tmp_path / "nowhere", ours, name)
    release_all(tmp_path / "nowhere", ours)


def test_what_is_in_use_is_not_removed_unless_forced(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), tmp_path / "cache"
    held = lease(cache, name, {**this_process(), "run_id": "the-run"})
    with pytest.raises(
        LeaseError, match=rf"{name} is in use: run the-run, pid {os.getpid()}; wait for .* or remove it anyway with --force"
    ):
        rm(cache, name)
    release(cache, held)
    lease(cache, name, {"scheduler": "slurm", "job_id": "17"})
    with pytest.raises(LeaseError, match="slurm 17"):
        rm(cache, name)
    assert rm(cache, name, force=True) == 20_000
    name = staged(tmp_path, "again")
    lease(cache, name, this_process())
    assert rm(cache, name, force=True) == 20_000
    assert ls(cache) == []
    assert not list((cache / "leases" / name).iterdir())


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), tmp_path / "cache"
    with pytest.raises(StagingError, match=rf"dataset other-0123456789ab is not in the cache .*; there: {name}"):
        rm(cache, "other-0123456789ab")
    for wrong in ("..", "../../etc", "datasets", ""):
        with pytest.raises(StagingError, match="not a name of a dataset"):
            rm(cache, wrong)
    with pytest.raises(LeaseError, match="not an id of a lease"):
        release(cache, f"{name}/../../x")
    with pytest.raises(StagingError, match="not a name of a dataset"):
        release(cache, "../abc")


def test_an_unreadable_lease_counts(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), tmp_path / "cache"
    written = lease(cache, name, this_process())
    for content in (b"", b"{", b"[]", b'"x"', b"\xff"):
        (cache / "leases" / f"{written}.json").write_bytes(content)
        assert [str(found) for found in ls(cache)[0].leases] == ["an unknown holder"]


def test_eviction_frees_what_was_asked_and_leaves_the_rest(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    names = [staged(tmp_path, f"d{index}") for index in range(4)]
    for age, name in enumerate(names):
        os.utime(cache / "used" / f"{name}.json", (1000 + age, 1000 + age))
    lease(cache, names[0], this_process())
    with Lock(open_cache(cache), names[1], "stage") as busy:
        assert busy.try_acquire()
        assert evict(open_cache(cache), 20_001) == names[2:]
    assert sorted(row.name for row in ls(cache)) == names[:2]
    assert evict(open_cache(cache), 0) == []
    assert evict(open_cache(cache), 1 << 40, keep=names[1]) == []


def test_what_is_left_of_a_dataset_whose_name_begins_alike_stays(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "cache")
    ours, longer = "a-0123456789ab", "a-0123456789ab.part-b-0123456789ab"
    for name in (ours, longer):
        (cache.datasets / f".{name}.gone-00000000").mkdir()
    sweep(cache, ours)
    assert [path.name for path in cache.datasets.iterdir()] == [f".{longer}.gone-00000000"]


def test_a_lost_stamp_is_made_again(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), tmp_path / "cache"
    stamp = cache / "used" / f"{name}.json"
    stamp.write_bytes(b"torn")
    assert ls(cache)[0].bytes == 20_000
    stamp.unlink()
    assert evict(open_cache(cache), 0) == []
    stage(tmp_path / "storage" / name, cache, options=QUICK)
    assert json.loads(stamp.read_bytes()) == {"bytes": 20_000}


def test_who_waits_for_a_lock_sees_its_holder_and_how_far_that_is(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), open_cache(tmp_path / "cache")
    seen: list[dict[str, object]] = []

    def see(holder: dict[str, object]) -> None:
        seen.append(holder)
        one.__exit__()

    one = Lock(cache, name, "stage")
    assert one.try_acquire()
    one._said_at = -math.inf
    one.show(5, 10)
    with pytest.raises(LeaseError, match=rf"being worked on \(stage\) by pid {os.getpid()}"):
        rm(cache.root, name)
    with Lock(cache, name, "stage") as other:
        other.acquire(see)
    assert [seen[-1][key] for key in ("what", "done", "total", "pid")] == ["stage", 5, 10, os.getpid()]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_private_cache_is_ours_alone_whatever_lies_around(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(mode)
    cache = open_cache(root)
    assert not cache.shared
    assert {stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()} == {0o700}
    cache.datasets.chmod(0o777)
    with pytest.raises(StagingError, match="not ours alone"):
        open_cache(root)
    cache.datasets.rmdir()
    cache.datasets.symlink_to(tmp_path)
    with pytest.raises(StagingError, match="not ours alone"):
        open_cache(root)


def test_a_shared_cache_is_open_to_the_group(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2770)
    before = os.umask(0o077)
    try:
        staged_root = stage(random_dataset(tmp_path / "storage", [5000]), root, holder=this_process(), options=QUICK).root
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()} == {
        **dict.fromkeys(("datasets", "leases", "locks", "used", "verified"), 0o2770),
        "runs": 0o3770,
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in (staged_root, staged_root / "shard-00000.lmdb")} == {0o2750}
    for path in [*(root / "locks").iterdir(), *(root / "leases").glob("*/*")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match=r"cannot be used: Not a directory: .*; mend that, or set cache.path"):
        open_cache(tmp_path / "file" / "cache")


@pytest.mark.processes
def test_a_cache_that_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    name, cache = staged(tmp_path), tmp_path / "cache"
    refused = pytest.raises(StagingError, match=r"cannot be used: Operation not permitted: .*; mend that")
    with immutable(cache / "leases"), refused:
        stage(tmp_path / "storage" / name, cache, holder=this_process(), options=QUICK)


@pytest.mark.processes
def test_an_entry_that_cannot_be_removed_keeps_no_other_from_eviction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = open_cache(tmp_path / "cache")
    left = cache.datasets / ".a-0123456789ab.gone-00000000"
    (left / "shard").mkdir(parents=True)
    name = staged(tmp_path)
    with immutable(left / "shard"):
        sweep(cache, "a-0123456789ab")
        assert evict(cache, 20_000) == [name]
        assert f"{left}/shard cannot be removed (Operation not permitted): `lsattr` shows" in caplog.text
        assert f"chattr -R -f -ia {left}; rm -r {left}" in caplog.text
    sweep(cache, "a-0123456789ab")
    assert list(cache.datasets.iterdir()) == []


def test_a_list_of_nothing_makes_nothing(tmp_path: Path) -> None:
    assert ls(tmp_path / "cache") == []
    assert not (tmp_path / "cache").exists()


def test_results_that_wait_are_listed_even_if_their_note_is_torn(tmp_path: Path) -> None:
    run_dir = open_cache(tmp_path / "cache").runs / "r1-a1-00"
    run_dir.mkdir()
    (run_dir / "pending.json").write_bytes(b"{")
    assert [(row.name, row.kind, row.target) for row in ls(tmp_path / "cache")] == [("r1-a1-00", "result", None)]
