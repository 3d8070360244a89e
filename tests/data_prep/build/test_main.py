"""The commands of a build as a rule or a person starts them, each in a process of its own."""

import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from base.errors import DatasetError
from data_prep.build.dataset import build_dataset, build_dir_of, build_shards
from data_prep.build.shard import KIND as IMAGES
from data_prep.file_set import verify_dataset
from data_prep.spec import parse_spec
from tests.data_prep.build.building import ROOT, started
from tests.data_prep.build.corpus import build, class_folders, encoded, pixels, prepared, write
from tests.data_prep.staging.disks import exit_code, in_child

pytestmark = pytest.mark.slow
MADE = {"source": "synthetic", "samples": 40, "classes": 4, "size": 12, "shards": 4}


def command(*arguments: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "data_prep.build", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        check=False,
        timeout=120,
    )


def test_plan_shards_and_finish_as_rules_call_them(tmp_path: Path) -> None:
    datasets, build_dir = tmp_path / "datasets", tmp_path / "datasets" / ".build" / "set-123"
    assert command("plan", "--spec", json.dumps(MADE), "--name", "set", "--build-dir", build_dir).returncode == 0
    for index in range(4):
        assert command("shard", "--build-dir", build_dir, "--index", f"{index:05d}", cwd=tmp_path).returncode == 0
    assert command("finish", "--build-dir", build_dir, "--datasets-dir", datasets).returncode == 0
    built = json.loads((build_dir / "dataset.json").read_text())
    assert built["samples"] == 40
    assert build(tmp_path / "here", MADE)[0].name == built["path"]
    assert (datasets / built["path"]).stat().st_mode & 0o777 == 0o700
    assert command("--group", "finish", "--build-dir", build_dir, "--datasets-dir", datasets).returncode == 0


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_digest_does_not_depend_on_processes_hash_seed_or_locale(tmp_path: Path, jobs: int) -> None:
    root = class_folders(tmp_path / "p", {"a": 20, "b": 20})
    write(root / "b" / "ü \udcff.png", encoded(pixels(77)))
    spec = {"source": "folder", "path": str(root), "shards": 5}
    expected, _ = build(tmp_path / "here", spec)
    for number, env in enumerate([{"PYTHONHASHSEED": "1", "LC_ALL": "C"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"}]):
        out, errors = started(spec, "set", tmp_path / str(number), jobs, env={**os.environ, **env}).communicate(timeout=120)
        assert json.loads(out.splitlines()[-1])["path"] == expected.name, errors
        verify_dataset(tmp_path / str(number) / expected.name)


@pytest.mark.parametrize(
    ("spec", "name", "code", "words"),
    [
        ("{", "set", 10, "not valid JSON"),
        ("[" * 100_000, "set", 10, "not valid JSON"),
        ('{"source": "folder"}', "set", 10, "needs a path"),
        ("{}", "../x", 10, "not a name of a dataset"),
        ('{"source": "folder", "path": "nowhere"}', "set", 20, "does not exist"),
    ],
)
def test_errors_are_messages_with_the_code_of_their_class(tmp_path: Path, spec: str, name: str, code: int, words: str) -> None:
    done = command("plan", "--spec", spec, "--name", name, "--build-dir", tmp_path / "d", cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_usage_and_strict(tmp_path: Path) -> None:
    assert command("shard").returncode == 2
    assert command().returncode == 2
    assert command("--help").returncode == 0
    root = class_folders(tmp_path / "p", {"a": 3})
    write(root / "a" / "cut.png", encoded(pixels(5))[:-40])
    spec = json.dumps({"source": "folder", "path": str(root), "splits": {}, "shards": 1, "strict": True})
    assert command("plan", "--spec", spec, "--name", "set", "--build-dir", tmp_path / "d").returncode == 0
    done = command("shard", "--index", "0", "--build-dir", tmp_path / "d")
    assert (done.returncode, "a/cut.png: truncated PNG" in done.stderr) == (20, True)


def test_a_file_in_the_way_is_a_message(tmp_path: Path) -> None:
    write(tmp_path / "d", b"a file")
    done = command("plan", "--spec", json.dumps(MADE), "--name", "set", "--build-dir", tmp_path / "d")
    assert done.returncode == 22
    assert "Traceback" not in done.stderr


def test_build_dataset_goes_on_and_finds_it_done(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    spec = parse_spec(MADE, tmp_path)

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    built = build_dataset(spec, "set", tmp_path, 2, progress)
    assert seen[-1] == (40, 40)
    assert [done for done, total in seen if total == 40] == sorted(done for done, total in seen if total == 40)
    assert build_dataset(spec, "set", tmp_path, 2) == built
    assert build_dataset(spec, "set", tmp_path, 2, fresh=True) == built
    plan = build_dir_of(tmp_path, "set", spec) / "plan.json"
    plan.write_text(plan.read_text().replace("slipway.plan/2", "slipway.plan/1"))
    assert build_dataset(spec, "set", tmp_path, 2, progress) == built, "a finished build of an older version is found"
    assert seen[-1] == (40, 40)


def test_the_error_of_a_worker_is_raised_here(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "p", {"a": 3})
    write(root / "a" / "big.png", encoded(pixels(5, 9, 9)))
    with pytest.raises(DatasetError, match="set size"):
        build_dataset(parse_spec({"source": "folder", "path": str(root), "splits": {}, "shards": 1}, tmp_path), "set", tmp_path, 1)


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    build_dir = prepared(tmp_path, {**MADE, "samples": 4000, "size": 64})
    victims: list[int] = []

    def kill(_index: int, _done: int) -> None:
        if not victims:
            victims.extend(child for child in children() if f"{build_dir}" in command_line(child))
            os.kill(victims[0], 9)

    with pytest.raises(DatasetError, match=r"killed by SIGKILL \(out of memory\?\)"):
        build_shards(build_dir, range(4), 2, kill)
    assert not [child for child in children() if f"{build_dir}" in command_line(child)]


def children() -> list[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    parent = started({**MADE, "samples": 200_000}, "set", tmp_path)
    assert parent.stdout is not None
    for line in parent.stdout:
        if json.loads(line).get("total") == 200_000 and json.loads(line)["done"] < 100_000 and has_workers(tmp_path):
            break
    workers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and is_worker(path, tmp_path)]
    assert workers
    descriptors = [os.pidfd_open(pid) for pid in workers]
    parent.kill()
    parent.wait()
    for stream in (parent.stdout, parent.stderr):
        assert stream is not None
        stream.close()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 30)[0], "a worker lives on"
        os.close(descriptor)


def has_workers(place: Path) -> bool:
    return any(is_worker(path, place) for path in Path("/proc").iterdir() if path.name.isdigit())


def is_worker(path: Path, place: Path) -> bool:
    try:
        words = (path / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"work" in words and any(str(place).encode() in word for word in words)


def test_a_source_that_is_too_large_for_the_memory_is_a_message(tmp_path: Path) -> None:
    def plan() -> None:
        used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + (24 << 20), resource.RLIM_INFINITY))
        with pytest.raises(DatasetError, match="memory"):
            IMAGES.plan(parse_spec({**MADE, "samples": 3_000_000}, tmp_path), "set", tmp_path / "build")

    assert exit_code(in_child(plan)) == 0


MEMORY = """
import json, resource, sys
from pathlib import Path
from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec

place = Path(sys.argv[1])
built = build_dataset(parse_spec(json.loads(sys.argv[2]), place), "set", place / "storage", jobs=2)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(built.bytes, 1024 * int(status["VmHWM"].split()[0]), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("keys", [{"encoding": "jpeg"}, {"encoding": "raw"}, {"encoding": "jpeg", "statistics": "all"}])
def test_no_process_of_a_build_takes_100_mb(tmp_path: Path, keys: dict[str, str]) -> None:
    """Of 3,000 photos of 256 pixels: as raw pixels they are 590 MB."""
    photo = encoded(pixels(0, 256, 256), "JPEG", quality=50)
    for number in range(3000):
        write(tmp_path / "photos" / str(number % 10) / f"{number}.jpg", photo)
    spec = {"source": "folder", "path": "photos", "size": 256, "shards": 4, "splits": {}, **keys}
    argv = [sys.executable, "-c", MEMORY, str(tmp_path), json.dumps(spec)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    size, *largest = map(int, done.stdout.split())
    assert size > (500 << 20 if keys["encoding"] == "raw" else 50 << 20)
    assert max(largest) < 100 << 20
