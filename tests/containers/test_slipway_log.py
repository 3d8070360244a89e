"""slipway_log.py: a program runs below it as it would alone, and its events are written for it."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.process import CODE_ROOT
from workflow.run.record.events import RankEvents, read_events

pytestmark = pytest.mark.processes
ADAPTER = CODE_ROOT / "containers" / "lib" / "slipway_log.py"
STEP = r"it (?P<step>\d+) loss (?P<loss>\S+)"
CELL = {"steps": {"warmup": 2, "measured": 5}}


def argv_of(script: str) -> list[str]:
    return [sys.executable, str(ADAPTER), "sh", "-c", script]


def variables(tmp_path: Path, settings: dict[str, Any], rank: int = 0) -> dict[str, str]:
    (tmp_path / "cell.json").write_text(json.dumps(CELL))
    ours = {"SLIPWAY_OUT": str(tmp_path), "SLIPWAY_CELL": str(tmp_path / "cell.json"), "SLIPWAY_EVENTS": json.dumps(settings)}
    return {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "RANK": str(rank), "WORLD_SIZE": "2", **ours}


def start(tmp_path: Path, script: str, *, rank: int = 0, **settings: Any) -> tuple[int, bytes, RankEvents]:
    """Exit code, output, and events of a shell script."""
    env = variables(tmp_path, settings or {"step": STEP}, rank)
    done = subprocess.run(argv_of(script), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
    return done.returncode, done.stdout, read_events(tmp_path, 2)[rank]


STEPS = "for i in 1 2 3 4 5 6 7 8; do echo it $i loss 0.$i; sleep 0.02; done"


def test_output_goes_on_and_its_steps_are_events(tmp_path: Path) -> None:
    code, output, events = start(tmp_path, f"echo begin >&2; {STEPS}; printf end")
    assert (code, output) == (0, b"begin\n" + b"".join(b"it %d loss 0.%d\n" % (i, i) for i in range(1, 9)) + b"end")
    assert events.start is not None
    assert (events.start.rank, events.start.world_size, events.start.steps_source) == (0, 2, "log")
    assert sorted(events.steps) == list(range(8))
    assert events.steps[7].loss == 0.8
    assert events.stop is not None
    assert events.stop.train_s > 0.1
    assert events.broken_lines == 0


@pytest.mark.parametrize("settings", [{"none": True}, {"step": STEP, "ranks": "first"}])
def test_who_is_not_read_tells_of_no_steps(tmp_path: Path, settings: dict[str, Any]) -> None:
    code, output, events = start(tmp_path, STEPS, rank=1, **settings)
    assert (code, output.count(b"loss"), events.steps) == (0, 8, {})
    assert events.start is not None
    assert events.start.steps_source == "none"
    assert events.stop is not None


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL)])
def test_the_end_of_the_program_is_ours(tmp_path: Path, script: str, code: int) -> None:
    found, _, events = start(tmp_path, f"echo it 1 loss 1; {script}")
    assert (found, len(events.steps), events.stop) == (code, 1, None)


def test_a_signal_reaches_the_program(tmp_path: Path) -> None:
    script = "trap 'echo it 2 loss 1; exit 7' TERM; echo it 1 loss 1; while :; do sleep 0.05; done"
    with subprocess.Popen(argv_of(script), env=variables(tmp_path, {"step": STEP}), stdout=subprocess.PIPE) as adapter:
        assert adapter.stdout is not None
        adapter.stdout.readline()
        adapter.terminate()
        assert adapter.wait(30) == 7
    assert len(read_events(tmp_path, 1)[0].steps) == 2


def test_the_program_does_not_outlive_us(tmp_path: Path) -> None:
    with subprocess.Popen(argv_of("echo $$; exec sleep 60"), env=variables(tmp_path, {"step": STEP}), stdout=subprocess.PIPE) as adapter:
        assert adapter.stdout is not None
        child = os.pidfd_open(int(adapter.stdout.readline()))
        adapter.kill()
        try:
            assert select.select([child], [], [], 20)[0] == [child]
        finally:
            os.close(child)


def test_a_daemon_that_keeps_the_output_open_keeps_nobody(tmp_path: Path) -> None:
    code, _, events = start(tmp_path, f"{STEPS}; (setsid sh -c 'while echo still here; do :; done' &)")
    assert (code, len(events.steps)) == (0, 8)


def test_a_loss_that_is_no_number_ends_the_program(tmp_path: Path) -> None:
    code, _, events = start(tmp_path, "echo it 1 loss 1; sleep 0.1; echo it 2 loss nan; exec sleep 60")
    assert code == 42
    assert [(error.kind, error.message) for error in events.errors] == [("nan", "the loss of step 1 is nan")]


@pytest.mark.parametrize(
    "noise",
    ["yes 'a line of a flood' | head -c 5000000", "head -c 5000000 /dev/zero", "head -c 500000 /dev/urandom", "printf '%05000d' 1"],
    ids=["flood", "no newline", "binary", "long line"],
)
def test_whatever_else_is_printed_steps_are_found_and_nothing_is_lost(tmp_path: Path, noise: str) -> None:
    code, output, events = start(tmp_path, f"echo it 1 loss 1; {noise}; echo; printf '\\033[32mit\\033[0m 2 loss 0.5\\rit 3 loss 0.25'")
    assert (code, sorted(events.steps), events.steps[2].loss) == (0, [0, 1, 2], 0.25)
    assert output.endswith(b"it 3 loss 0.25")
    assert len(output) > 5000


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    env = variables(tmp_path, {"step": STEP})
    assert subprocess.run([sys.executable, str(ADAPTER), "/no/such/program"], env=env, check=False).returncode == 2
    message = read_events(tmp_path, 1)[0].errors[0].message
    assert message.startswith("/no/such/program cannot be started: No such file or directory: the image must have it, or without an image")
