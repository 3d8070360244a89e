"""The watcher as a process: it writes lines that are read, takes a last look when told, costs little, and ends with its parent."""

import json
import os
import subprocess
import sys
import time

import pytest
from msgspec import UNSET

from cluster.load.readers import kernel_seen
from cluster.processes import state_of
from workflow.run.node.child import Watcher, pid_here, process_identity, watching_argv
from workflow.run.record.machine_load import load_of, parse_watched

pytestmark = pytest.mark.processes


def test_a_watcher_sees_ours_and_takes_a_last_look() -> None:
    cores = os.sched_getaffinity(0)
    watcher = Watcher([watching_argv(sys.executable, cores, "", [])])
    try:
        deadline = time.monotonic() + 60
        while watcher.lines().count(b"\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.monotonic()
        enough = time.process_time() + 0.3
        while time.process_time() < enough:
            pass
        ended = time.monotonic()
        watcher.finish()
        while '"t"' not in last_line(watcher) or json.loads(last_line(watcher))["t"] < ended:
            assert time.monotonic() < ended + 60
            time.sleep(0.01)
        watched = parse_watched(watcher.lines().splitlines(keepends=True))
    finally:
        watcher.close()
    assert watched is not None
    assert watched.cores == len(cores)
    last = watched.lines[-1]
    assert UNSET not in (last.own, last.idle, last.available)
    assert (last.kernel is not UNSET) is watched.kernel_seen is kernel_seen()
    during = load_of(watched, (began, ended)).during
    assert during is not None
    assert during.own_cores * during.seconds >= 0.2, "this process is the watcher's parent, so what it used is ours"


def last_line(watcher: Watcher) -> str:
    return watcher.lines().rpartition(b"\n")[0].rpartition(b"\n")[2].decode()


def test_one_that_cannot_be_started_is_no_error() -> None:
    watcher = Watcher([("/nowhere/python",)])
    watcher.close()
    assert watcher.lines() == b""


def test_a_watcher_ends_with_the_process_that_started_it() -> None:
    code = (
        "import sys, time; from workflow.run.node.child import Watcher, watching_argv\n"
        "w = Watcher([watching_argv(sys.executable, [0], '', [])])\nprint(w._children[0].pid, flush=True); sys.stdin.readline()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    descriptor = os.pidfd_open(pid)
    parent.kill()
    parent.communicate()
    import select

    assert select.select([descriptor], [], [], 30)[0], "it lives on"
    os.close(descriptor)


def test_a_supervisor_is_found_on_its_own_machine_only() -> None:
    assert pid_here(process_identity()) == os.getpid()
    assert state_of(os.getpid()) is not None
    assert pid_here(process_identity().replace("-", "+")) is None
    assert pid_here("") is pid_here("x y z") is None
