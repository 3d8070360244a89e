"""The endings: each is done to a run; what it returns is to be done when the containers are gone, or is None."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster import processes
from containers.engines.cli import WATCHDOG
from tests.endings.one import One, read

Act = Callable[[One], Callable[[], None] | None]
ALL = ("before", "load", "start", "train", "push")
LATE = ALL[1:]
OVER_S = 180.0
CUT_S = 60.0
SERVER_S = 5.0
COMES_UP_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`moments`: when it can strike. `bound_s`: until nothing is left."""

    act: Act
    moments: tuple[str, ...] = LATE
    bound_s: float = 15.0
    submitted_bound_s: float = 15.0
    """The same, of a submitted study. Slurm does not reach a Snakemake whose slurmstepd was killed: when its runs have ended, it tries them
    once more, which the ended job refuses, and writes tables and report before it goes."""
    daemon: bool = False
    """It ends dockerd of the struck node."""
    submitted: bool = False
    """To runs of `slipway submit` too."""
    own_time: bool = False
    """The moment is the run's own, which gets a short walltime."""
    limited: bool = False
    """By the limit of the job, which is short from the beginning where it cannot be changed."""
    waits: bool = False
    """`act` waits until the run is being ended: measured from there."""
    stills: bool = False
    """The job stands still and does not end: only containers and ranks go, the rest when it goes on."""
    words: tuple[str, ...] | None = None
    """What a record may call the end; None: no matter what. A run that was killed with its supervisor has none."""
    every: int = 1
    """In one of so many rounds of all kinds."""
    only: str | None = None
    """The scheduler that it is of."""
    engine: str | None = None
    """The engine that it is of."""


def _strike(one: One, find: Callable[[], list[int]]) -> None:
    """Kill one of those found, who may have to come up first."""
    found: list[int] = []
    give_up = time.monotonic() + COMES_UP_S
    while not (found := find()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"nobody to strike on {', '.join(one.nodes)}: it is over already; it said: {one.log()[-500:]}")
        time.sleep(0.02)
    processes.send([one.rng.choice(found)], signal.SIGKILL)


def cancel(one: One) -> None:
    one.order(one.place.words.cancel)


def walltime(one: One) -> None:
    """Slurm looks every 30 s which jobs are over their limit. The supervisor knows only the limit that it began with. Where that cannot be
    changed, the job has a short one from the beginning."""
    if one.place.words.shorten is not None:
        one.order(one.place.words.shorten)
    _until(lambda: not one.runs(), "the scheduler to end the job", 0.2)


def server_restart(one: One) -> None:
    """The run goes on meanwhile; it is cancelled by a server that has not seen it start."""
    one.cluster.ctld("kill")
    time.sleep(one.rng.uniform(0.0, SERVER_S))
    one.cluster.ctld("start")
    _until(one.runs, "the server to know the job", 0.2)
    one.order(one.place.words.cancel)


def deadline(one: One) -> None:
    """The run's own: the supervisor says when it begins to end it."""
    _until(lambda: " left: a checkpoint is wanted" in one.log() or "timeout:" in one.log(), "the run's time to be over", 0.05)


def supervisor(one: One) -> None:
    _strike(one, lambda: one.programs("-m", "workflow.run.supervisor"))


def slurmstepd_of_job(one: One) -> None:
    _strike(one, lambda: one.pids(f"slurmstepd: [{one.job}.batch]"))


def slurmstepd_of_step(one: One) -> None:
    _strike(one, lambda: one.pids(f"slurmstepd: [{one.job}.0]"))


def slurmstepd_of_container(one: One) -> None:
    """Of the step that pyxis makes a container of, or unpacks an image in: those after the node program's."""
    _strike(one, lambda: [pid for pid in one.pids(f"slurmstepd: [{one.job}.") if re.search(rb"\.([1-9]\d*)\]", read(pid, "cmdline"))])


def node_program(one: One) -> None:
    _strike(one, lambda: one.programs("-m", "workflow.run.node"))


def client(one: One) -> None:
    _strike(one, one.clients)


def rank(one: One) -> None:
    """The user's program itself."""
    _strike(one, one.ranks)


def watchdog(one: One) -> None:
    """The first process of a container, with which all of it goes."""
    _strike(one, lambda: one.programs(WATCHDOG))


def cut(one: One) -> None:
    """The struck node is off the network until the scheduler has given the job up, which Grid Engine does not do. What runs there hears
    that when the link is back."""
    if one.place.words.once is not None:
        one.order(one.place.words.once)
    one.cluster.cut(one.struck)
    give_up = time.monotonic() + CUT_S
    while one.runs() and time.monotonic() < give_up:
        time.sleep(0.2)
    one.cluster.heal(one.struck)


def suspend(one: One) -> Callable[[], None]:
    """All that Slurm knows of stands still; what is left of that when the containers are gone ends after it goes on."""
    one.order(one.place.words.suspend)
    return lambda: one.order(one.place.words.resume)


def dockerd_restart(one: One) -> Callable[[], None]:
    return _meanwhile(lambda: one.cluster.dockerd(one.struck, "restart"))


def dockerd_kill(one: One) -> Callable[[], None]:
    def again() -> None:
        one.cluster.dockerd(one.struck, "kill")
        one.cluster.dockerd(one.struck, "start")

    return _meanwhile(again)


def _meanwhile(act: Callable[[], None]) -> Callable[[], None]:
    """Begin it; what is returned waits for its end."""
    problems: list[Exception] = []

    def guarded() -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised again in `finish`
            problems.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()

    def finish() -> None:
        thread.join()
        if problems:
            raise problems[0]

    return finish


def _until(condition: Callable[[], bool], what: str, pause_s: float) -> None:
    give_up = time.monotonic() + OVER_S
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {OVER_S:g} s for {what}")
        time.sleep(pause_s)


FAULTS: dict[str, Fault] = {
    "cancel": Fault(act=cancel, moments=ALL, submitted=True, words=("cancelled",)),
    "supervisor": Fault(act=supervisor, moments=ALL, words=()),
    "client": Fault(act=client, moments=("start", "train"), words=("node_lost",)),
    "dockerd restart": Fault(act=dockerd_restart, daemon=True, bound_s=30.0),
    "node program": Fault(act=node_program, words=("node_lost",)),
    "deadline": Fault(act=deadline, moments=("before",), own_time=True, waits=True, words=("timeout",)),
    "rank": Fault(act=rank, moments=("train",), words=("killed",)),
    "slurmstepd of job": Fault(
        act=slurmstepd_of_job, moments=ALL, submitted=True, submitted_bound_s=60.0, words=("cancelled",), only="slurm"
    ),
    "dockerd kill": Fault(act=dockerd_kill, daemon=True, bound_s=30.0),
    "slurmstepd of step": Fault(act=slurmstepd_of_step, words=("cancelled", "node_lost"), only="slurm"),
    "slurmstepd of container": Fault(
        act=slurmstepd_of_container,
        moments=("load", "start", "train"),
        words=("cancelled", "node_lost", "killed"),
        only="slurm",
        engine="pyxis",
    ),
    "watchdog": Fault(act=watchdog, moments=("train",), words=("killed", "node_lost")),
    "suspend": Fault(act=suspend, moments=("start", "train"), bound_s=30.0, stills=True),
    "walltime": Fault(act=walltime, moments=("train",), submitted=True, limited=True, waits=True, every=2, words=("timeout",)),
    "server restart": Fault(act=server_restart, moments=("start", "train"), waits=True, every=2, words=("cancelled",)),
    "cut": Fault(act=cut, moments=("train",), waits=True, every=2, words=("node_lost", "cancelled")),
}
