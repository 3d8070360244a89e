"""Faults injected into builds: kill -9, a full disk, no inodes, a failed sync, a power cut. Nothing half is taken for whole.

SLIPWAY_KILLS=100 sets the trials (default 6); a failing trial prints its seed.
"""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from base.errors import NotEnoughSpace
from data_prep.build.shard import KIND as IMAGES
from data_prep.build.steps import shard_path
from data_prep.file_set import verify_dataset
from data_prep.free_space import write_failed
from data_prep.hashing import hash_file
from data_prep.manifest import DATA_NAME
from tests.data_prep.build.building import started
from tests.data_prep.build.corpus import build, build_in, class_folders, encoded, pixels, prepared, write
from tests.data_prep.staging.disks import ext4, tmpfs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
TRIALS = int(os.environ.get("SLIPWAY_KILLS", "6"))


def may_trace() -> bool:
    """Whether this machine lets strace trace: some containers do not."""
    return (
        shutil.which("strace") is not None and subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False).returncode == 0
    )


needs_strace = pytest.mark.skipif("not may_trace()", reason="strace is not installed, or may not trace here")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some files that are stored as they are, and some that are encoded anew."""
    root = class_folders(tmp_path_factory.mktemp("source") / "photos", {"a": 150}, size=64)
    class_folders(root, {"b": 150}, kind="JPEG", size=64)
    write(root / "a" / "cut.png", encoded(pixels(5))[:-40])
    return {"source": "folder", "path": str(root), "shards": 6, "encoding": "jpeg"}


@pytest.fixture(scope="module")
def expected(source: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the dataset, built without any fault."""
    return build(tmp_path_factory.mktemp("whole"), source)[0].name


def start(source: dict[str, Any], datasets: Path) -> subprocess.Popen[str]:
    return started(source, "set", datasets, start_new_session=True)


def finish(source: dict[str, Any], datasets: Path) -> str:
    """Build to the end; the name of the dataset."""
    out, errors = start(source, datasets).communicate(timeout=120)
    assert out, errors
    return str(json.loads(out.splitlines()[-1])["path"])


def kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def pause(seconds: float) -> None:
    """Let the victim run for a random while: the moment of a kill is what is tested."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


def check_claims(datasets: Path) -> None:
    """Whatever is there under a final name must be whole."""
    for build_dir in (datasets / ".build").glob("*"):
        if not (build_dir / "plan.json").exists():
            continue
        plan = IMAGES.read_plan(build_dir)
        assert len(list((build_dir / "samples").iterdir())) == len(plan.shards)
        for index in range(len(plan.shards)):
            receipt = IMAGES.find(build_dir, index, plan)
            if (build_dir / f"shard-{index:05d}.json").exists():
                assert receipt is not None
            if receipt is not None and not (build_dir / "dataset.json").exists() and shard_path(build_dir, index).exists():
                assert hash_file(shard_path(build_dir, index) / DATA_NAME) == receipt.hashes
        if (build_dir / "dataset.json").exists():
            verify_dataset(datasets / json.loads((build_dir / "dataset.json").read_text())["path"])
    for root in datasets.glob("set-*"):
        verify_dataset(root)


def seeds() -> Iterator[random.Random]:
    first = int(os.environ.get("SLIPWAY_SEED", "20"))
    for seed in range(first, first + TRIALS):
        print("seed", seed)  # noqa: T201 shown when the trial fails
        yield random.Random(seed)


def test_kill_at_any_moment_and_go_on(tmp_path: Path, source: dict[str, Any], expected: str) -> None:
    begin = time.monotonic()
    assert finish(source, tmp_path / "timed") == expected
    whole = time.monotonic() - begin
    for number, rng in enumerate(seeds()):
        datasets = tmp_path / str(number)
        for _ in range(rng.randint(1, 3)):
            process = start(source, datasets)
            pause(rng.uniform(0.2, 1.0) * whole)
            kill(process)
            check_claims(datasets)
        assert finish(source, datasets) == expected
        verify_dataset(datasets / expected)
        build_dir = next((datasets / ".build").iterdir())
        assert not [path.name for path in build_dir.glob(".shard-*")], "parts of the dead stay behind"
        assert not list(datasets.glob(".set-*"))
        shutil.rmtree(datasets)


def test_two_builders_at_once_end_right(tmp_path: Path, source: dict[str, Any], expected: str) -> None:
    for _ in range(2):
        builders = [start(source, tmp_path / "d") for _ in range(3)]
        answers = [builder.communicate(timeout=120) for builder in builders]
        assert [json.loads(out.splitlines()[-1])["path"] if out else errors for out, errors in answers] == [expected] * 3
        verify_dataset(tmp_path / "d" / expected)
        shutil.rmtree(tmp_path / "d")


def test_one_of_two_builders_is_killed(tmp_path: Path, source: dict[str, Any], expected: str) -> None:
    for rng in seeds():
        victim, survivor = start(source, tmp_path / "d"), start(source, tmp_path / "d")
        pause(rng.uniform(0.2, 1.5))
        kill(victim)
        out, errors = survivor.communicate(timeout=120)
        assert out, errors
        assert json.loads(out.splitlines()[-1])["path"] == expected
        verify_dataset(tmp_path / "d" / expected)
        shutil.rmtree(tmp_path / "d")


def test_power_cuts_during_a_whole_build(tmp_path: Path, source: dict[str, Any], expected: str) -> None:
    for number, rng in enumerate(seeds()):
        place = tmp_path / str(number)
        place.mkdir()
        with ext4(place) as disk:
            process = start(source, disk.place / "datasets")
            pause(rng.uniform(0.3, 2.5))
            disk.cut_power()
            kill(process)
            disk.unmount()
            disk.mount()
            check_claims(disk.place / "datasets")
            assert finish(source, disk.place / "datasets") == expected
            verify_dataset(disk.place / "datasets" / expected)


def test_what_a_step_has_acknowledged_survives_a_power_cut(tmp_path: Path, source: dict[str, Any], expected: str) -> None:
    for number, rng in enumerate(seeds()):
        place = tmp_path / str(number)
        place.mkdir()
        with ext4(place) as disk:
            build_dir = prepared(disk.place, source)
            argv = [sys.executable, "-m", "data_prep.build", "work", "--build-dir", str(build_dir)]
            with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write("".join(f"{index}\n" for index in range(6)))
                worker.stdin.close()
                finished: list[int] = []
                wanted = rng.randint(1, 6)
                while len(finished) < wanted:
                    line = json.loads(worker.stdout.readline())
                    finished += [line["finished"]] if "finished" in line else []
                pause(rng.uniform(0, 0.05))
                disk.cut_power()
                worker.kill()
            disk.unmount()
            disk.mount()
            plan = IMAGES.read_plan(build_dir)
            for index in finished:
                receipt = IMAGES.find(build_dir, index, plan)
                assert receipt is not None
                assert hash_file(shard_path(build_dir, index) / DATA_NAME) == receipt.hashes
            check_claims(build_dir.parent.parent)
            assert build_in(build_dir).path == expected
            disk.cut_power()  # the dataset has been acknowledged now
            disk.unmount()
            disk.mount()
            assert (build_dir / "dataset.json").exists()
            verify_dataset(build_dir.parent.parent / expected)


def test_a_full_disk_says_need_and_free(tmp_path: Path, source: dict[str, Any]) -> None:
    with tmpfs(tmp_path / "small", 3 << 20) as place:
        out, errors = start({**source, "encoding": "raw", "shards": 2}, place / "datasets").communicate(timeout=120)
        assert '"path"' not in out
        assert "are needed" in errors
        assert "are free" in errors
        assert str(place) in errors
        assert not list(place.rglob("shard-00000.lmdb"))  # train's; the small one of test may fit, and is kept then
        assert not [path for path in place.rglob(".shard-*")]


def test_a_disk_that_is_full_when_the_last_values_are_written_needs_more_than_nothing(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 512 << 10) as place:
        error = write_failed(place, 0, "shard 1 of x", OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(error, NotEnoughSpace)
    assert str(error).startswith("shard 1 of x: 1048576 bytes (1.0 MB) are needed, 524288 (524.3 kB) are free in ")


def test_room_that_is_made_lets_the_build_go_on(tmp_path: Path, source: dict[str, Any]) -> None:
    with tmpfs(tmp_path / "small", 12 << 20) as place:
        build_dir = prepared(place, {**source, "encoding": "jpeg", "size": 64, "channels": "rgb", "shards": 2})
        ballast = write(place / "ballast", b"x" * (os.statvfs(place).f_bavail * 4096 - (200 << 10)))
        with pytest.raises(NotEnoughSpace, match="are needed"):
            IMAGES.build(build_dir, 0)
        assert not list(build_dir.glob(".shard-*"))
        ballast.unlink()
        IMAGES.build(build_dir, 0)
        assert shard_path(build_dir, 0).is_dir()


def test_no_inodes_is_said(tmp_path: Path, source: dict[str, Any]) -> None:
    with tmpfs(tmp_path / "few", 64 << 20, 24) as place:
        build_dir = prepared(place, {**source, "shards": 2})
        for index in range(os.statvfs(place).f_favail):
            (place / f"file-{index}").touch()
        with pytest.raises((NotEnoughSpace, OSError), match="inodes|No space"):
            IMAGES.build(build_dir, 0)


@needs_strace
def test_a_failed_sync_is_not_repeated_on_the_same_file(tmp_path: Path, source: dict[str, Any]) -> None:
    """The first fsync of a shard fails: its part is removed, and the next build writes another one."""
    build_dir = prepared(tmp_path, source)
    argv = ["strace", "-f", "-qq", "-e", "trace=fsync,unlink,unlinkat", "-e", "inject=fsync:error=EIO:when=1", sys.executable, "-m"]
    argv += ["data_prep.build", "shard", "--build-dir", str(build_dir), "--index", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert "INJECTED" in done.stderr
    assert done.returncode == 22, done.stderr
    assert "cannot be written: [Errno 5]" in done.stderr
    assert not list(build_dir.glob(".shard-*"))
    IMAGES.build(build_dir, 0)
    receipt = IMAGES.find(build_dir, 0, IMAGES.read_plan(build_dir))
    assert receipt is not None
    assert hash_file(shard_path(build_dir, 0) / DATA_NAME) == receipt.hashes
    assert not list(build_dir.glob(".shard-*"))


@needs_strace
def test_a_source_that_answers_eio_is_asked_again(tmp_path: Path, source: dict[str, Any]) -> None:
    build_dir = prepared(tmp_path, source)
    path = sorted(Path(source["path"]).rglob("*.png"))[0]
    listed = [file.read_bytes() for file in sorted((build_dir / "samples").iterdir())]
    for when, code in (("1..2", 0), ("1..9", 22)):
        index = next(index for index, content in enumerate(listed) if f"a/{path.name}".encode() in content)
        argv = [
            "strace",
            "-f",
            "-qq",
            "-P",
            str(path),
            "-e",
            "trace=pread64",
            "-e",
            f"inject=pread64:error=EIO:when={when}",
            sys.executable,
            "-m",
        ]
        argv += ["data_prep.build", "shard", "--build-dir", str(build_dir), "--index", str(index)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
        assert done.returncode == code, done.stderr
        if code == 0:
            (build_dir / f"shard-{index:05d}.json").unlink()
        else:
            assert path.name in done.stderr
