"""Run a command, and wait for a condition, both with a limit."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.minicluster.spec import ClusterError

INTERVAL_S = 0.05
DIE_TOGETHER = ("setpriv", "--pdeathsig", "KILL")  # what `up` runs does nothing more when `up` is killed


def wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Return as soon as `condition()` holds. ClusterError after `limit_s`."""
    end = time.monotonic() + limit_s
    interval = INTERVAL_S
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {limit_s:g} s")
        time.sleep(interval)
        interval = min(interval * 1.3, 0.5)


def run(argv: list[str], text: str | None = None, limit_s: float = 60.0, env: dict[str, str] | None = None) -> str:
    """What `argv` prints. ClusterError with its last words when it fails."""
    try:
        done = subprocess.run([*DIE_TOGETHER, *argv], input=text, capture_output=True, text=True, check=False, timeout=limit_s, env=env)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{argv} did not end within {limit_s:g} s") from error
    if done.returncode != 0:
        raise ClusterError(f"{argv} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def last_lines(path: Path, count: int = 20) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return "(no log)"
