"""Staging under kills, power cuts, full disks, frozen and concurrent stagers. Invariants are looked at from outside after each."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from base.errors import DigestMismatch, NotEnoughSpace
from data_prep.cache.entries import ls
from data_prep.cache.lock import this_process
from data_prep.file_set import JOURNAL_NAME as NAME
from data_prep.file_set import verify_dataset
from data_prep.manifest import read_manifest
from data_prep.staging import StageOptions, stage
from data_prep.staging.chunk_journal import ChunkTable, Journal
from data_prep.staging.copy import CopyOptions
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.disks import exit_code, ext4, in_child, tmpfs
from tests.data_prep.staging.test_stage import Stopped, stop_after

pytestmark = pytest.mark.slow

TRIALS = int(os.environ.get("SLIPWAY_TRIALS", "60"))
SIZES = [300_000, 4096 * 40, 77, 123_456]
OPTIONS = StageOptions(patience_s=0.0, copy=CopyOptions(sync_bytes=40_000))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != NAME}


def assert_nothing_wrong(source: Path, cache: Path) -> None:
    """What has the final name is whole, every chunk that a journal lists is right."""
    target, part = cache / "datasets" / source.name, cache / "datasets" / f".{source.name}.part-{os.geteuid()}"
    if target.exists():
        assert contents(target) == contents(source)
    if not (part / NAME).exists():
        return
    table = ChunkTable(read_manifest(source).shards)
    journal = Journal(part, table.num_chunks)
    journal.close()
    for number in journal.done:
        file, start, num_bytes = table.span(number)
        content = (part / table.files[file].path).read_bytes()
        assert len(content) == table.files[file].bytes
        assert xxhash.xxh3_128_hexdigest(content[start : start + num_bytes]) == table.hash(number)


def duration(function: Any) -> float:
    started = time.perf_counter()
    assert exit_code(in_child(function)) == 0
    return time.perf_counter() - started


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("direct", [False, True])
def test_killed_at_any_moment_it_goes_on(tmp_path: Path, seed: int, direct: bool) -> None:
    chance = random.Random(seed)
    options = StageOptions(patience_s=0.0, copy=CopyOptions(sync_bytes=40_000, direct=direct))
    source = random_dataset(tmp_path / "storage", SIZES)
    whole = duration(lambda: stage(source, tmp_path / "measured", options=options))
    kills = 0
    for trial in range(TRIALS // 4):
        cache = tmp_path / f"cache-{trial}"
        for _ in range(3):
            child = in_child(lambda cache=cache: stage(source, cache, options=options))
            time.sleep(chance.uniform(0, whole))
            os.kill(child, signal.SIGKILL)
            kills += exit_code(child) == -signal.SIGKILL
            assert_nothing_wrong(source, cache)
        staged = stage(source, cache, options=options)
        assert staged.hit or staged.copied_bytes + staged.resumed_bytes == staged.bytes
        assert contents(staged.root) == contents(source)
        assert [row.kind for row in ls(cache)] == ["dataset"]
    assert kills > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_cut_at_any_moment_leaves_nothing_wrong(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sources = [random_dataset(tmp_path / "storage", [size // 4 for size in SIZES], seed=index, name=f"d{index}") for index in range(6)]
    with ext4(tmp_path) as disk:
        cache = disk.place / "cache"
        whole = duration(lambda: [stage(source, cache, options=OPTIONS) for source in sources])
        for _ in range(TRIALS // 4):
            subprocess.run(["rm", "-rf", cache], check=True)
            os.sync()
            told, tell = os.pipe()
            child = in_child(
                lambda tell=tell: [
                    os.write(tell, bytes([stage(source, cache, options=OPTIONS).hit + 2 * n])) for n, source in enumerate(sources)
                ]
            )
            os.close(tell)
            time.sleep(chance.uniform(0, 1.2 * whole))
            disk.cut_power()
            os.kill(child, signal.SIGKILL)
            exit_code(child)
            with os.fdopen(told, "rb") as pipe:
                acknowledged = [sources[byte // 2] for byte in pipe.read()]
            disk.unmount()
            disk.mount()
            for source in sources:
                assert_nothing_wrong(source, cache)
            for source in acknowledged:
                assert (cache / "datasets" / source.name).exists()
            for source in sources:
                assert contents(stage(source, cache, options=OPTIONS).root) == contents(source)


def test_a_full_disk_is_refused_first_and_evicted_for(tmp_path: Path) -> None:
    first, second = (random_dataset(tmp_path / "storage", [2_000_000, 1_000_000], seed=seed, name=f"d{seed}") for seed in (0, 1))
    with tmpfs(tmp_path / "disk", 5_000_000) as disk:
        stage(first, disk / "cache", holder={**this_process(), "run_id": "the-run"}, options=OPTIONS)
        with pytest.raises(NotEnoughSpace, match=r"free on that disk .*\nin use, so not evicted:\n  d0-.* in use by run the-run"):
            stage(second, disk / "cache", options=OPTIONS)
        assert [row.name for row in ls(disk / "cache")] == [first.name]
        for lease in (disk / "cache" / "leases" / first.name).iterdir():
            lease.unlink()
        stage(second, disk / "cache", options=OPTIONS)
        assert [row.name for row in ls(disk / "cache")] == [second.name]


def test_a_disk_without_inodes_says_inodes(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [1000] * 20)
    with (
        tmpfs(tmp_path / "disk", 50_000_000, num_inodes=40) as disk,
        pytest.raises(NotEnoughSpace, match=r"48 inodes are needed, \d+ are free"),
    ):
        stage(source, disk / "cache", options=OPTIONS)


def command(source: Path, cache: Path, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "data_prep.staging", "--source", source, "--cache", cache, "--patience-s", "0", *more]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=60)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def injected(fault: str, source: Path, cache: Path, *more: str, on: Path | None = None) -> dict[str, Any]:
    """The last line of a staging process of one thread whose system calls fail as strace is told to, those on the file `on` if given."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace to make system calls fail")
    argv = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={fault.partition(':')[0]}", "-e", f"inject={fault}"]
    argv += [] if on is None else ["-P", str(on)]
    argv += [sys.executable, "-m", "data_prep.staging", "--source", source, "--cache", cache, "--patience-s", "0", "--threads", "1", *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        assert done.returncode == {"NotEnoughSpace": 15, "StagingError": 15, "StorageError": 22}[found["error"][0]]
    return found


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("fallocate:error=ENOSPC:when=2", "NotEnoughSpace", "became full"),
        ("pwritev,pwritev2:error=ENOSPC:when=5", "NotEnoughSpace", "became full"),
        ("pwritev,pwritev2:error=EDQUOT:when=5", "NotEnoughSpace", "Disk quota exceeded"),
        ("pwritev,pwritev2:error=EIO:when=5", "StagingError", "the disk of the cache .* failed"),
        ("fdatasync:error=EIO:when=1", "StagingError", "the disk of the cache .* failed"),
        ("fsync:error=EIO:when=2", "StagingError", "the disk of the cache .* failed"),
    ],
)
def test_an_error_of_the_nodes_disk_gives_everything_back(tmp_path: Path, fault: str, kind: str, message: str) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    error = injected(fault, source, tmp_path / "cache")["error"]
    assert error[0] == kind
    assert re.search(message, error[1])
    assert not list((tmp_path / "cache" / "datasets").iterdir())
    assert contents(stage(source, tmp_path / "cache", options=OPTIONS).root) == contents(source)


@pytest.mark.parametrize("error", ["EIO", "ESTALE"])
def test_a_failed_read_is_tried_again(tmp_path: Path, error: str) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    on = source / "shard-00000.lmdb" / "data.mdb"
    assert injected(f"preadv,preadv2:error={error}:when=7", source, tmp_path / "cache", on=on)["result"]["copied_bytes"] == sum(SIZES)
    assert contents(tmp_path / "cache" / "datasets" / source.name) == contents(source)


def test_a_read_that_fails_three_times_is_an_error_of_storage_and_what_came_stays(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    on = source / "shard-00000.lmdb" / "data.mdb"
    error = injected("preadv,preadv2:error=EIO:when=20+", source, tmp_path / "cache", on=on)["error"]
    assert error[0] == "StorageError"
    assert re.search(r"data.mdb: Input/output error, 3 times in a row; look after the storage", error[1])
    assert [row.kind for row in ls(tmp_path / "cache")] == ["part"]
    assert contents(stage(source, tmp_path / "cache", options=OPTIONS).root) == contents(source)


def test_a_file_system_that_cannot_reserve_is_copied_to_all_the_same(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    assert injected("fallocate:error=EINVAL", source, tmp_path / "cache")["result"]["bytes"] == sum(SIZES)
    assert contents(tmp_path / "cache" / "datasets" / source.name) == contents(source)


def test_two_at_once_copy_once(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [400_000, 400_000])
    processes = [
        command(source, tmp_path / "cache", "--bytes-per-s", "1000000", "--holder", json.dumps({"run_id": f"r{n}"})) for n in range(3)
    ]
    results = [result(process)["result"] for process in processes]
    assert sorted(staged["copied_bytes"] for staged in results) == [0, 0, 800_000]
    assert sorted(staged["hit"] for staged in results) == [False, True, True]
    assert contents(Path(results[0]["root"])) == contents(source)
    assert {str(lease) for lease in ls(tmp_path / "cache")[0].leases} == {"run r0", "run r1", "run r2"}


def test_a_frozen_stager_is_waited_for(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [400_000, 400_000])
    frozen = command(source, tmp_path / "cache", "--bytes-per-s", "400000")
    assert frozen.stdout is not None
    assert "progress" in frozen.stdout.readline()
    frozen.send_signal(signal.SIGSTOP)
    waiting = command(source, tmp_path / "cache")
    assert waiting.stdout is not None
    assert "progress" in waiting.stdout.readline()
    frozen.send_signal(signal.SIGCONT)
    assert result(frozen)["result"]["copied_bytes"] == 800_000
    assert result(waiting)["result"]["hit"]


def test_a_closed_pipe_ends_it_and_the_copy_is_kept(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [4_000_000])
    with command(source, tmp_path / "cache", "--bytes-per-s", "1000000") as process:
        assert process.stdout is not None
        assert "progress" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 26
    assert [row.kind for row in ls(tmp_path / "cache")] == ["part"]


@pytest.mark.parametrize(("stack_bytes", "words"), [(64 << 20, "can't start new thread"), (256 << 10, "Cannot allocate memory")])
def test_too_little_memory_is_no_fault_of_the_disk_and_the_copy_is_kept(tmp_path: Path, stack_bytes: int, words: str) -> None:
    """For the stack of a thread, or for the buffer of a chunk (ulimit -v)."""
    source = random_dataset(tmp_path / "storage", [64_000_000], chunk_bytes=64 << 20)
    code = f"""
import resource, sys, threading
from data_prep.staging.__main__ import main
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
limit = 1024 * int(status["VmSize"].split()[0]) + (40 << 20)
threading.stack_size({stack_bytes})
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.exit(main(sys.argv[1:]))
"""
    argv = [sys.executable, "-c", code, "--source", source, "--cache", tmp_path / "cache"]
    done = subprocess.run(argv, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert (done.returncode, error[0]) == (15, "StagingError")
    limits = f"{source.name} cannot be copied within the limits of this process: {words}; the unfinished copy is kept"
    assert error[1].startswith(limits)
    assert [row.kind for row in ls(tmp_path / "cache")] == ["part"]


def test_a_stager_ends_with_the_program_that_asked(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", [4_000_000])
    middle = (
        "import subprocess, sys\n"
        "process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "process.stdout.readline()\n"
        "print(process.pid, flush=True)\n"
    )
    argv = [sys.executable, "-m", "data_prep.staging", "--source", source, "--cache", tmp_path / "cache", "--bytes-per-s", "1000000"]
    done = subprocess.run([sys.executable, "-c", middle, *argv], capture_output=True, text=True, check=True, timeout=60)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{done.stdout.strip()}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [row.kind for row in ls(tmp_path / "cache")] == ["part"]


def test_the_command_ends_with_the_code_of_the_class(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    process = command(source, tmp_path / "cache", "--max-bytes", "1000")
    assert result(process)["error"][0] == "NotEnoughSpace"
    assert process.returncode == 15
    process = command(source, tmp_path / "cache", "--holder", "[]")
    assert result(process)["error"][0] == "ConfigError"
    assert process.returncode == 10
    (source / "shard-00000.lmdb" / "data.mdb").unlink()
    process = command(source, tmp_path / "cache")
    assert "shard-00000.lmdb/data.mdb does not exist" in result(process)["error"][1]
    assert process.returncode == 15


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_an_entry_of_another_user_is_hashed_once(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    root = stage(source, tmp_path / "cache", options=OPTIONS).root
    os.chown(root, 65534, 65534)
    assert stage(source, tmp_path / "cache", options=OPTIONS).hit
    mark = tmp_path / "cache" / "verified" / f"{source.name}-0.json"
    assert json.loads(mark.read_bytes())["digest"].startswith(source.name[-12:])
    assert stage(source, tmp_path / "cache", options=replace(OPTIONS, check_s=0.0)).checked_bytes == 0
    shard = root / "shard-00000.lmdb" / "data.mdb"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(content)
    again = stage(source, tmp_path / "cache", options=OPTIONS)
    assert not again.hit
    assert contents(again.root) == contents(source)


def silent(image: Path, marker: bytes, distance: int) -> int:
    """Flip one bit in the disk's own file, `distance` bytes behind `marker`, as a disk does that decays; no time stamp moves. Returns how
    often the marker was there."""
    content = image.read_bytes()
    found = content.find(marker)
    while found >= 0:
        with image.open("r+b") as file:
            file.seek(found + distance)
            file.write(bytes([content[found + distance] ^ 4]))
        found = content.find(marker, found + 1)
    return content.count(marker)


@pytest.mark.parametrize("when", ["staged", "interrupted"])
def test_what_a_disk_lost_by_itself_never_reaches_a_reader(tmp_path: Path, when: str) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    marker = (source / "shard-00001.lmdb" / "data.mdb").read_bytes()[4096 : 4096 + 64]
    with ext4(tmp_path) as disk:
        cache = disk.place / "cache"
        if when == "staged":
            stage(source, cache, options=OPTIONS)
        else:
            with pytest.raises(Stopped):
                stage(source, cache, progress=stop_after(550_000), options=OPTIONS)
        disk.unmount()
        assert silent(disk.image, marker, 100) > 0
        disk.mount()
        staged = stage(source, cache, options=OPTIONS)
        assert not staged.hit
        assert contents(staged.root) == contents(source)
        assert (staged.resumed_bytes > 0) == (when == "interrupted")


def test_verify_reads_the_disk_and_not_our_memory(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    marker = (source / "shard-00001.lmdb" / "data.mdb").read_bytes()[4096 : 4096 + 64]
    with ext4(tmp_path) as disk:
        root = stage(source, disk.place / "cache", options=OPTIONS).root
        assert contents(root) == contents(source)
        verify_dataset(root)
        assert silent(disk.image, marker, 100) > 0
        with pytest.raises(DigestMismatch, match=r"shard-00001.lmdb: chunk 1 of 40 differs"):
            verify_dataset(root)


def test_a_disk_that_does_not_keep_what_it_is_given_is_named(tmp_path: Path) -> None:
    """Every write of the copy goes wrong on the way to the disk: the system call says that all went well, and nothing was written."""
    source = random_dataset(tmp_path / "storage", SIZES)
    error = injected("pwritev,pwritev2:retval=4096", source, tmp_path / "cache")["error"]
    assert error[0] == "StagingError"
    assert re.search(r"does not keep what it is given: chunk 0 of shard-00000.lmdb .* 4 times", error[1])
    assert not [row for row in ls(tmp_path / "cache") if row.kind == "dataset"]


def test_what_a_disk_loses_once_is_written_again(tmp_path: Path) -> None:
    source = random_dataset(tmp_path / "storage", SIZES)
    found = injected("pwritev,pwritev2:retval=4096:when=30", source, tmp_path / "cache")["result"]
    assert found["storage_bytes"] == sum(SIZES) + 4096
    assert contents(tmp_path / "cache" / "datasets" / source.name) == contents(source)
