import errno
import math
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.errors import Cancelled, DigestMismatch, NotEnoughSpace, StagingError
from base.lock import LockFile
from base.seal import publish_sealed, read_sealed
from cluster.holder import holder_of
from data_prep.cache.entries import ls
from data_prep.cache.layout import open_cache
from data_prep.cache.lock import as_user, release, this_process
from data_prep.cache.stored import check_entry
from data_prep.staging import StagedFiles, StageOptions, stage
from data_prep.staging.cache_check import Entry, recheck
from data_prep.staging.copy import CopyOptions
from data_prep.staging.exchange import Exchange
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.disks import idle_process
from tests.data_prep.tree.corpus import contents

SIZES = [60_000, 4096 * 8, 1, 33_333]
QUICK = StageOptions(patience_s=0.0, copy=CopyOptions(sync_bytes=10_000))


class Stopped(Exception):
    """Ends a copy from outside, as a kill would, but politely."""


def stop_after(num_bytes: int) -> Any:
    def progress(done: int, _total: int) -> None:
        if done >= num_bytes:
            raise Stopped

    return progress


def assert_whole(staged: StagedFiles, source: Path) -> None:
    assert contents(staged.root) == contents(source)
    assert staged.root.name == source.name
    assert not [path for path in staged.root.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("direct", [False, True, None])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_copy_is_whole_and_the_next_one_is_a_hit(tmp_path: Path, direct: bool | None, threads: int) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    seen: list[tuple[int, int]] = []
    options = replace(QUICK, copy=CopyOptions(direct=direct, threads=threads))
    staged = stage(source, tmp_path / "cache", progress=lambda *state: seen.append(state), options=options)
    assert_whole(staged, source)
    assert (staged.hit, staged.copied_bytes, staged.resumed_bytes, staged.lease) == (False, sum(SIZES), 0, None)
    assert staged.bytes == sum(SIZES)
    assert seen[-1] == (sum(SIZES), sum(SIZES))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    for path in staged.root.rglob("*"):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o444
    again = stage(source, tmp_path / "cache", options=QUICK)
    assert (again.hit, again.copied_bytes, again.root, again.digest) == (True, 0, staged.root, staged.digest)
    assert_whole(again, source)


def test_a_hit_does_not_touch_storage(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [5000])
    stage(source, tmp_path / "cache", options=QUICK)
    source.rename(tmp_path / "gone")
    assert stage(source, tmp_path / "cache", options=QUICK).hit


def test_a_dataset_without_shards_and_one_of_chunks_that_fit_no_block(tmp_path: Path) -> None:
    for name, sizes, chunk_bytes in (("empty", [], 4096), ("odd", [10_000, 999], 1000)):
        source = random_dataset(tmp_path / "storage", sizes, name=name, chunk_bytes=chunk_bytes)
        assert_whole(stage(source, tmp_path / "cache", options=replace(QUICK, copy=CopyOptions(direct=True))), source)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_a_flipped_byte_on_storage_is_named_and_never_published(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    damaged = source / "shard-00001.lmdb" / "data.mdb"
    flip(damaged, 4096 * 3 + 7)
    with pytest.raises(
        DigestMismatch, match=r"shard-00001.lmdb/data.mdb: chunk 3 of 8 .*has the hash [0-9a-f]{32}, the manifest says [0-9a-f]{32}"
    ):
        stage(source, tmp_path / "cache", options=QUICK)
    assert [row.kind for row in ls(tmp_path / "cache")] == ["part"]
    flip(damaged, 4096 * 3 + 7)
    staged = stage(source, tmp_path / "cache", options=QUICK)
    assert_whole(staged, source)
    assert staged.resumed_bytes + staged.copied_bytes == staged.bytes
    assert staged.resumed_bytes > 0


@pytest.mark.parametrize("size", [4096 * 7, 4096 * 9, 0])
def test_a_shard_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    os.truncate(source / "shard-00001.lmdb" / "data.mdb", size)
    with pytest.raises(DigestMismatch, match=rf"shard-00001.lmdb/data.mdb has {size} bytes, its manifest says 32768"):
        stage(source, tmp_path / "cache", options=QUICK)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    manifest = source / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(DigestMismatch, match="the directory's name promises"):
        stage(source, tmp_path / "cache", options=QUICK)


def test_what_is_not_there_or_has_no_name_of_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(StagingError, match=r"manifest.json does not exist \(looked for 0 s\)"):
        stage(tmp_path / "bytes-0123456789ab", tmp_path / "cache", options=QUICK)
    for name in ("bytes", "..-0123456789ab", "Bytes-0123456789ab", "bytes-0123456789ab\n"):
        with pytest.raises(StagingError, match="not a name of a dataset"):
            stage(tmp_path / name, tmp_path / "cache", options=QUICK)


def test_a_link_or_a_pipe_in_the_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    path = source / "shard-00001.lmdb" / "data.mdb"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="cannot be read: Too many levels of symbolic links"):
        stage(source, tmp_path / "cache", options=QUICK)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Exception, match="not a regular file"):
        stage(source, tmp_path / "cache", options=QUICK)


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest", "nothing left", "link"])
def test_a_damaged_copy_is_staged_again(tmp_path: Path, damage: str) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    staged = stage(source, tmp_path / "cache", options=QUICK)
    shard = staged.root / "shard-00000.lmdb" / "data.mdb"
    if damage == "cut":
        shard.chmod(0o644)  # only root cuts what may not be written
        os.truncate(shard, 4096)
    elif damage == "missing":
        shard.unlink()
    elif damage == "manifest":
        (staged.root / "manifest.json").chmod(0o644)
        flip(staged.root / "manifest.json", 10)
    elif damage == "nothing left":
        for path in [*staged.root.rglob("*.mdb"), staged.root / "manifest.json"]:
            path.unlink()
    else:
        staged.root.rename(tmp_path / "elsewhere")
        staged.root.symlink_to(tmp_path / "elsewhere")
    assert ls(tmp_path / "cache")[0].damaged
    again = stage(source, tmp_path / "cache", options=QUICK)
    assert (again.hit, again.copied_bytes) == (False, sum(SIZES))
    assert_whole(again, source)
    assert ls(tmp_path / "cache")[0].damaged is None


def test_progress_that_cannot_be_shown_is_no_damage(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    inode = stage(source, tmp_path / "cache", options=QUICK).root.stat().st_ino

    def broken(_done: int, _total: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(Cancelled, match="progress cannot be shown any more: Broken pipe"):
        stage(source, tmp_path / "cache", progress=broken, options=QUICK)
    again = stage(source, tmp_path / "cache", options=QUICK)
    assert (again.hit, again.root.stat().st_ino) == (True, inode)


def test_a_lock_that_takes_no_progress_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a full disk that writes each block to another place."""
    source = random_dataset(tmp_path / "storage", SIZES)
    monkeypatch.setattr("data_prep.cache.lock.LOCK_LOOK_S", -math.inf)
    write_holder = LockFile.write_holder

    def full(lock: LockFile, text: str) -> None:
        if '"done":0' not in text:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_holder(lock, text)

    monkeypatch.setattr(LockFile, "write_holder", full)
    copied = stage(source, tmp_path / "cache", options=QUICK)
    assert "cannot be shown any more how far it is: No space left on device" in caplog.text
    again = stage(source, tmp_path / "cache", options=replace(QUICK, check_s=None))
    assert (again.hit, again.root.stat().st_ino) == (True, copied.root.stat().st_ino)


@pytest.mark.parametrize(
    "text", ['{"done": "x", "total": "x"}', '{"done": null, "total": []}', f'{{"done": 1{60 * "0"}, "total": 1}}', "["]
)
def test_what_another_holder_wrote_of_its_progress_is_checked(tmp_path: Path, text: str) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    cache, seen = open_cache(tmp_path / "cache"), []
    other = LockFile(cache.locks / f"{source.name}.lock")
    assert other.try_take()
    other.write_holder(text)

    def show(done: int, total: int) -> None:
        if not seen:
            other.close()
        seen.append((done, total))

    stage(source, cache.root, progress=show, options=QUICK)
    assert seen[0][0] == 0
    assert seen[-1] == (sum(SIZES), sum(SIZES))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("opens", ["data_prep.staging.copy.opened", "base.untrusted.open_plain"], ids=["shard", "manifest"])
def test_a_limit_of_this_process_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, opens: str) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    inode = stage(source, tmp_path / "cache", options=QUICK).root.stat().st_ino
    with monkeypatch.context() as context:

        def refuse(*_arguments: object) -> int:
            raise OSError(error, os.strerror(error))

        context.setattr(opens, refuse)
        with pytest.raises(StagingError, match=f"cannot be (used|read): {os.strerror(error)}"):
            stage(source, tmp_path / "cache", options=QUICK)
    again = stage(source, tmp_path / "cache", options=QUICK)
    assert (again.hit, again.root.stat().st_ino) == (True, inode)


def test_who_waits_for_room_ends_when_nobody_sees_progress_any_more(tmp_path: Path) -> None:
    source, cache = random_dataset(tmp_path / "storage", SIZES), open_cache(tmp_path / "cache")
    other = LockFile(cache.locks / "space.lock")
    assert other.try_take()
    freed = threading.Timer(10.0, other.close)
    freed.start()
    with pytest.raises(Stopped):
        stage(source, cache.root, progress=stop_after(0), options=QUICK)
    assert other.held
    freed.cancel()
    other.close()


def test_what_is_hashed_in_a_thread_ends_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_dataset(tmp_path / "storage", [400 * 4096], chunk_bytes=4096)
    stage(source, tmp_path / "cache", options=QUICK)
    seen: list[int] = []
    turn = Exchange.turn

    def interrupted(exchange: Exchange, limit_s: float) -> None:
        if seen:
            raise KeyboardInterrupt
        turn(exchange, min(limit_s, 0.01))

    def show(done: int, _total: int) -> None:
        seen.append(done)
        time.sleep(0.01)

    monkeypatch.setattr(Exchange, "turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage(source, tmp_path / "cache", progress=show, options=replace(QUICK, check_s=None))
    assert len(seen) < 200
    monkeypatch.undo()
    assert stage(source, tmp_path / "cache", options=QUICK).hit


@pytest.mark.parametrize("stop", [1, 20_000, 60_000, 100_000])
def test_a_stopped_copy_goes_on_where_it_was(tmp_path: Path, stop: int) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    with pytest.raises(Stopped):
        stage(source, tmp_path / "cache", progress=stop_after(stop), options=QUICK)
    assert [row.kind for row in ls(tmp_path / "cache")] == ["part"]
    staged = stage(source, tmp_path / "cache", options=QUICK)
    assert_whole(staged, source)
    assert staged.resumed_bytes + staged.copied_bytes == staged.bytes
    assert staged.resumed_bytes >= min(stop, sum(SIZES)) - 10_000 - 6 * 4096


def stopped(tmp_path: Path) -> tuple[Path, Path]:
    source = random_dataset(tmp_path / "storage", SIZES)
    with pytest.raises(Stopped):
        stage(source, tmp_path / "cache", progress=stop_after(100_000), options=QUICK)
    return source, tmp_path / "cache" / "datasets" / f".{source.name}.part-{os.geteuid()}"


def test_what_a_disk_lost_of_an_interrupted_copy_is_copied_again(tmp_path: Path) -> None:
    source, part = stopped(tmp_path)
    flip(part / "shard-00000.lmdb" / "data.mdb", 5000)
    staged = stage(source, tmp_path / "cache", options=QUICK)
    assert_whole(staged, source)
    assert 0 < staged.resumed_bytes < staged.bytes - 4096


@pytest.mark.parametrize("loss", ["removed", "cut", "grown", "link"])
def test_the_journal_makes_nothing_right_that_is_not_there(tmp_path: Path, loss: str) -> None:
    source, part = stopped(tmp_path)
    shard = part / "shard-00000.lmdb" / "data.mdb"
    if loss == "cut":
        os.truncate(shard, 4096)
    elif loss == "grown":
        os.truncate(shard, 60_001)
    else:
        shard.unlink()
    if loss == "link":
        (tmp_path / "mine").write_bytes(bytes(60_000))
        shard.symlink_to(tmp_path / "mine")
        with pytest.raises(StagingError, match="symbolic links"):
            stage(source, tmp_path / "cache", options=QUICK)
        assert (tmp_path / "mine").read_bytes() == bytes(60_000)
        assert_whole(stage(source, tmp_path / "cache", options=QUICK), source)
        return
    with pytest.raises(Stopped):  # the file is allocated again, full of zeros: a second stop must not make the old journal true again
        stage(source, tmp_path / "cache", progress=stop_after(0), options=QUICK)
    staged = stage(source, tmp_path / "cache", options=QUICK)
    assert_whole(staged, source)
    assert loss == "grown" or staged.copied_bytes >= 60_000, "what is there still, as a hash tells, is kept"


def test_a_copy_stopped_just_before_its_name_goes_on(tmp_path: Path) -> None:
    source, part = stopped(tmp_path)
    for path in part.rglob("data.mdb"):
        path.chmod(0o444)
    (part / "manifest.json").write_bytes(b"torn")
    (part / "manifest.json").chmod(0o444)
    assert_whole(stage(source, tmp_path / "cache", options=QUICK), source)


@pytest.mark.processes
def test_the_holder_gets_a_lease_that_ends_with_it(tmp_path: Path) -> None:
    source, cache = random_dataset(tmp_path / "storage", SIZES), tmp_path / "cache"
    with idle_process() as child:
        leases = [
            stage(source, cache, holder=as_user(holder_of(pid, "", "", 0), run_id), options=QUICK).lease
            for run_id, pid in (("a", os.getpid()), ("b", child))
        ]
        assert [str(lease) for lease in ls(cache)[0].leases if lease.id == leases[1]] == [f"run b, pid {child}"]
        assert {lease.id for lease in ls(cache)[0].leases} == set(leases)
    assert [lease.id for lease in ls(cache)[0].leases] == [leases[0]]
    assert leases[0] is not None
    release(cache, leases[0])
    release(cache, leases[0])
    assert ls(cache)[0].leases == ()


def test_the_least_recently_used_go_and_the_leased_stay(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    sources = [random_dataset(tmp_path / "storage", [50_000], seed=seed, name=f"d{seed}") for seed in range(5)]
    stage(sources[0], cache, holder={**this_process(), "run_id": "the-run"}, options=QUICK)
    for age, source in zip((300, 200, 100), sources[1:4], strict=True):
        stage(source, cache, options=QUICK)
        os.utime(cache / "used" / f"{source.name}.json", (1e9 - age, 1e9 - age))
    os.utime(cache / "used" / f"{sources[0].name}.json", (1, 1))
    stage(sources[1], cache, options=QUICK)  # used now
    staged = stage(sources[4], cache, max_bytes=250_000, options=QUICK)
    assert staged.copied_bytes == 50_000
    assert {row.name for row in ls(cache)} == {sources[index].name for index in (0, 1, 3, 4)}


def test_too_little_room_is_said_before_anything_goes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    small, large = (random_dataset(tmp_path / "storage", [size], name=name) for size, name in ((50_000, "small"), (90_000, "large")))
    leased = random_dataset(tmp_path / "storage", [40_000], name="leased")
    stage(small, cache, options=QUICK)
    stage(leased, cache, holder={**this_process(), "run_id": "the-run"}, options=QUICK)
    with pytest.raises(NotEnoughSpace) as caught:
        stage(large, cache, max_bytes=120_000, options=QUICK)
    message = str(caught.value)
    for part in (
        f"{large.name} does not fit",
        "it takes",
        "free on that disk",
        "cache.max_bytes is 120.0 kB",
        f"{leased.name}, 40.0 kB, in use by run the-run",
        "wait for the runs",
    ):
        assert part in message
    assert {row.name for row in ls(cache)} == {small.name, leased.name}


def test_what_a_kill_left_goes_first(tmp_path: Path) -> None:
    source, part = stopped(tmp_path)
    other = random_dataset(tmp_path / "storage", [50_000], name="other")
    gone = part.parent / f".{source.name}.gone-0123abcd"
    gone.mkdir()
    (gone / "data.mdb").write_bytes(bytes(10_000))
    own = part.parent / f".{other.name}.part-4194304"  # of another user
    own.mkdir()
    stage(other, tmp_path / "cache", max_bytes=80_000, options=QUICK)
    assert [row.kind for row in ls(tmp_path / "cache")].count("dataset") == 1
    assert not [path for path in part.parent.iterdir() if path.name.startswith(".")]


def test_progress_is_capped(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [40_000])
    staged = stage(source, tmp_path / "cache", options=replace(QUICK, copy=CopyOptions(bytes_per_s=200_000)))
    assert staged.seconds >= 0.2


def flip_unseen(path: Path, offset: int) -> None:
    """As flip(), with the time of the last write put back: only the time of change tells."""
    status = path.stat()
    path.chmod(0o644)
    flip(path, offset)
    path.chmod(0o444)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("check_s", [0.0, None])
def test_a_flipped_bit_in_a_staged_shard_never_reaches_a_reader(tmp_path: Path, check_s: float | None) -> None:
    """Also where no time is given for files that did not change: this one did."""
    source, cache = random_dataset(tmp_path / "storage", SIZES), tmp_path / "cache"
    options = replace(QUICK, check_s=check_s)
    staged = stage(source, cache, options=options)
    assert staged.checked_bytes == staged.bytes
    for offset in (0, 12_345, 59_999):
        flip_unseen(staged.root / "shard-00000.lmdb" / "data.mdb", offset)
        again = stage(source, cache, options=options)
        assert (again.hit, again.copied_bytes) == (False, sum(SIZES))
        assert_whole(again, source)


def test_what_was_hashed_and_did_not_change_is_hashed_as_long_as_there_is_time(tmp_path: Path) -> None:
    source, cache = random_dataset(tmp_path / "storage", SIZES), tmp_path / "cache"
    stage(source, cache, options=QUICK)
    assert stage(source, cache, options=replace(QUICK, check_s=0.0)).checked_bytes == 0
    assert stage(source, cache, options=QUICK).checked_bytes == sum(SIZES)
    (staged,) = cache.glob("datasets/*/shard-00001.lmdb/data.mdb")
    os.utime(staged)
    assert stage(source, cache, options=replace(QUICK, check_s=0.0)).checked_bytes == SIZES[1]
    assert stage(source, cache, options=replace(QUICK, check_s=0.0)).checked_bytes == 0


@pytest.mark.parametrize("damage", ["missing", "torn", "flipped", "of another dataset"])
def test_without_our_note_all_of_it_is_hashed(tmp_path: Path, damage: str) -> None:
    source, cache = random_dataset(tmp_path / "storage", SIZES), tmp_path / "cache"
    root = stage(source, cache, options=QUICK).root
    (note,) = (cache / "verified").iterdir()
    if damage == "missing":
        note.unlink()
    elif damage == "torn":
        os.truncate(note, 100)
    elif damage == "flipped":
        flip(note, note.read_bytes().index(b'"shards"') + 40)
    else:
        publish_sealed(note, {**read_sealed(note), "digest": 64 * "0"})
    quick = replace(QUICK, check_s=0.0)
    assert stage(source, cache, options=quick).checked_bytes == sum(SIZES)
    assert stage(source, cache, options=quick).checked_bytes == 0
    note.unlink()
    flip_unseen(root / "shard-00003.lmdb" / "data.mdb", 5)
    assert not stage(source, cache, options=quick).hit


def test_uses_go_on_hashing_where_the_last_one_ended(tmp_path: Path) -> None:
    """A dataset too large for the time is covered by several uses: here, by notes that say how far the last one came."""
    source, cache = random_dataset(tmp_path / "storage", [200 * 4096]), tmp_path / "cache"
    stage(source, cache, options=QUICK)
    entry = entry_of(cache, source.name)
    seen: list[int] = []
    for _ in range(20):
        looked: list[int] = []
        recheck(entry, 1e-9, time.monotonic_ns(), looked.append)
        recheck(entry, 2e-4, time.monotonic_ns(), looked.append)
        seen.append(len(looked))
        if sum(seen) >= 200:
            break
    (note,) = (cache / "verified").iterdir()
    assert read_sealed(note)["next"] == sum(seen) % 200


def test_what_another_of_ours_hashed_while_we_waited_counts(tmp_path: Path) -> None:
    source, cache = random_dataset(tmp_path / "storage", SIZES), tmp_path / "cache"
    stage(source, cache, options=QUICK)
    entry = entry_of(cache, source.name)
    asked = time.monotonic_ns()
    assert recheck(entry, None, asked, lambda _n: None) == sum(SIZES)
    assert recheck(entry, None, asked, lambda _n: None) == 0
    os.utime(entry.root / "shard-00001.lmdb" / "data.mdb")
    assert recheck(entry, None, asked, lambda _n: None) == sum(SIZES)


def entry_of(cache: Path, name: str) -> Entry:
    root = cache / "datasets" / name
    return Entry(cache=open_cache(cache), root=root, file_set=check_entry(root))
