"""Pushing under kills, power cuts and full storage: the final name is whole or absent, and what was acknowledged stays."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from base.errors import PushError
from base.publish import part_path
from data_prep.push import deliver_pending, keep_pending, publish_checked_files, push_files
from tests.data_prep.staging.disks import exit_code, ext4, in_child, tmpfs
from tests.data_prep.tree.corpus import contents

pytestmark = pytest.mark.slow

TRIALS = int(os.environ.get("SLIPWAY_TRIALS", "60"))


def anywhere(_target: Path) -> None:
    """A result may go wherever its note says."""


def result(out: Path, seed: int) -> Path:
    chance = random.Random(seed)
    for name in ("events-0.jsonl", "events-1.jsonl", "logs/rank-0.log", "logs/rank-1.log", "parameters.safetensors"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(chance.randbytes(chance.choice((0, 10, 5_000, 200_000))))
    return out


def push(out: Path, target: Path) -> None:
    part = part_path(target)
    publish_checked_files(part, push_files(out, part), target)


def assert_nothing_wrong(target: Path, out: Path) -> bool:
    """Whether `target` is there; if so, it is whole."""
    if not target.exists():
        return False
    assert contents(target) == contents(out)
    return True


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment_it_is_whole_or_absent(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    largest = result(tmp_path / "out", 0)
    started = time.perf_counter()
    assert exit_code(in_child(lambda: push(largest, tmp_path / "measured"))) == 0
    whole = time.perf_counter() - started
    kills = there = 0
    for trial in range(TRIALS):
        out, target = result(tmp_path / f"out-{trial}", trial), tmp_path / "storage" / f"run-{trial}" / "attempts" / "1"
        child = in_child(lambda out=out, target=target: push(out, target))
        time.sleep(chance.uniform(0, whole))
        os.kill(child, signal.SIGKILL)
        kills += exit_code(child) == -signal.SIGKILL
        there += assert_nothing_wrong(target, out)
        push(out, target)
        assert assert_nothing_wrong(target, out)
        assert [path.name for path in target.parent.iterdir() if not path.name.startswith(".")] == ["1"]
    assert kills > 0
    assert there < TRIALS


@pytest.mark.parametrize("seed", [1, 2])
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    outs = [result(tmp_path / f"out-{index}", index) for index in range(8)]
    with ext4(tmp_path) as disk:
        for trial in range(TRIALS // 4):
            targets = [disk.place / f"trial-{trial}" / f"run-{index}" / "attempts" / "1" for index in range(8)]
            told, tell = os.pipe()

            def push_all(targets: list[Path] = targets, tell: int = tell) -> None:
                for index, target in enumerate(targets):
                    push(outs[index], target)
                    os.write(tell, bytes([index]))

            child = in_child(push_all)
            os.close(tell)
            time.sleep(chance.uniform(0, 0.08))
            disk.cut_power()
            os.kill(child, signal.SIGKILL)
            exit_code(child)
            with os.fdopen(told, "rb") as pipe:
                acknowledged = set(pipe.read())
            disk.unmount()
            disk.mount()
            there = {index for index in range(8) if assert_nothing_wrong(targets[index], outs[index])}
            assert acknowledged <= there
            push_all(targets, os.open(os.devnull, os.O_WRONLY))
            assert all(assert_nothing_wrong(targets[index], outs[index]) for index in range(8))
            shutil.rmtree(disk.place / f"trial-{trial}")


def test_full_storage_keeps_the_result_on_the_node(tmp_path: Path) -> None:
    out = tmp_path / "cache" / "runs" / "r1-a1-00" / "out"
    out.mkdir(parents=True)
    (out / "parameters.safetensors").write_bytes(bytes(600_000))
    (out / "events-0.jsonl").write_bytes(bytes(600_000))
    with tmpfs(tmp_path / "storage", 1 << 20) as storage:
        target = storage / "attempts" / "1"
        with pytest.raises(PushError, match=r"storage is full: .* needs 1.2 MB, .* has 1.0 MB free .*free room or quota"):
            push(out, target)
        assert not [path for path in storage.rglob("*") if path.is_file()]
        keep_pending(out.parent, target, "storage was full")
        assert "storage is full" in deliver_pending(tmp_path / "cache", anywhere)[0].message
        (out / "events-0.jsonl").write_bytes(b"")
        assert deliver_pending(tmp_path / "cache", anywhere)[0].delivered
        assert (target / "parameters.safetensors").read_bytes() == bytes(600_000)


def test_storage_without_inodes_keeps_the_result_on_the_node(tmp_path: Path) -> None:
    out = result(tmp_path / "out", 1)
    with tmpfs(tmp_path / "storage", 1 << 24, num_inodes=6) as storage:
        with pytest.raises(PushError, match=r"No space left on device"):
            push(out, storage / "1")
        assert not [path for path in storage.rglob("*") if path.is_file()]
