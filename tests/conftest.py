"""No time decides a test. The slow tests are in scopes that may run side by side, since they wait more than they work. A quick test that
starts processes is marked so, or fails."""

import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import PurePath
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from cluster.runtime import runtime_directory
from tests import skips

if "PYTEST_XDIST_WORKER" in os.environ:  # as many of them as there are cores to be used: polars need not share out frames of nine rows
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what stands before a `&` in a script with SIGINT ignored. Programs leave that as it is, as after nohup, and so do those
    # that tests start: nobody's Ctrl-C would be heard.
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is collected: nothing of it is garbage, and it would be looked through again and again

settings.register_profile("slipway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipway")

pytest.register_assert_rewrite("tests.launchers", "tests.slurm.framework_rows")  # what they compare is shown as in a test

CLONE_NEWNS, MS_REC, MS_SLAVE = 0x20000, 0x4000, 0x80000


def make_own_locks() -> bool:
    """Put a directory over that of the locks of this machine, for this process and its children. Return False where that is not allowed.

    Of all runs of a user on a machine, one at a time measures: those of two test processes would wait for each other.
    """
    if os.geteuid() != 0:
        return False
    libc, place = ctypes.CDLL(None), os.fsencode(runtime_directory())
    return (
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) == 0
        and libc.mount(b"none", place, b"tmpfs", 0, b"mode=0700") == 0
    )


OWN_LOCKS = make_own_locks()
SCOPES: Final[dict[str, str | None]] = {
    "slurm": "slurm",
    "slurm/test_images.py": "docker",
    "schedulers": "schedulers",
    "containers": "engines",
    "containers/frameworks": None,
    "containers/test_runs.py": None if OWN_LOCKS else "runs",
    **({} if OWN_LOCKS else dict.fromkeys(("workflow", "test_wheel.py"), "runs")),
}
"""A file or a directory -> the scope of its tests, which one worker runs; None: each file is one, as where nothing is said. The nearest
counts. A scope shares a real cluster, or the daemons of engines; without locks of its own, one run that measures waits for the other."""
LONGEST: Final = (
    "runs",
    "slurm",
    "engines",
    "containers/test_runs.py",
    *(
        f"workflow/{name}.py"
        for name in ("test_examples", "run/test_runs", "test_identity", "test_run_command", "test_kills", "test_profile_runs")
    ),
    "workflow/study/test_given_parameters.py",
    "schedulers",
    "docker",
)
"""They begin first, so that no worker is left with one of them at the end."""


STARTING: Final = frozenset(("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"))
"""What Python tells an audit hook before it starts a process."""


class Watched:
    """Whether the test that runs may start processes, and what it tried to start where it may not."""

    alone = False
    tried: ClassVar[list[str]] = []


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. The interpreter that base/calls.py keeps serves all tests of a process, and is none of theirs."""
    if event in STARTING and Watched.alone and "base.calls" not in (arguments[1:2] or ((),))[0]:
        Watched.tried.append(f"{event}{arguments[:2]!r}")  # its arguments; not its environment
        message = f"a test that starts processes carries @pytest.mark.processes: {Watched.tried[-1]}"
        raise RuntimeError(message)


sys.addaudithook(refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Also while its fixtures are made."""
    Watched.alone = not {"slow", "processes"} & {mark.name for mark in item.iter_markers()}
    try:
        return (yield)
    finally:
        Watched.alone = False


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """This process as it was before: our programs, called here, make their umask private, so that no container could read the files of the
    tests that follow, and log to a standard error that is closed when their test ends."""
    umask, handlers = os.umask(0o022), logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers
    os.umask(umask)
    tried, Watched.tried[:] = Watched.tried[:], []
    assert not tried, f"it carries no @pytest.mark.processes, and started {tried}"


def pytest_configure(config: pytest.Config) -> None:
    """In the process that starts the workers."""
    skips.pytest_configure(config)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector of garbage need not look at it again, nor a forked child copy it."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtestloop() -> None:
    """In the process that starts the workers, which collects no tests itself."""
    gc.enable()


class Scopes(LoadScopeScheduling):
    """`--dist loadscope` by SCOPES. (`loadgroup` of xdist 3.8 has no effect with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        where = PurePath(nodeid.split("::")[0]).relative_to("tests")
        nearest = next((place.as_posix() for place in (where, *where.parents) if place.as_posix() in SCOPES), "")
        return SCOPES.get(nearest) or where.as_posix()

    def _assign_work_unit(self, node: Any) -> None:
        for scope in LONGEST:
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """For `make slow`."""
    return Scopes(config, log) if config.getvalue("dist") == "loadscope" else None
