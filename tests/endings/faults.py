"""The endings: each is done to a run; what it returns is to be done when the containers are gone, or is None."""

import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster import processes
from containers.engines.docker_podman import WATCHDOG
from tests.endings.place import One
from tests.minicluster import schedulers, slurm
from tests.minicluster.processes import read

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
    daemon: bool = False
    """It ends dockerd of the struck node."""
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
    if one.place.scheduler == "slurm":
        slurm.save(one.cluster.spec, one.job)
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
    "cancel": Fault(act=cancel, moments=ALL, words=("cancelled",)),
    "supervisor": Fault(act=supervisor, moments=ALL, words=()),
    "client": Fault(act=client, moments=("start", "train"), words=("node_lost",)),
    "dockerd restart": Fault(act=dockerd_restart, daemon=True, bound_s=30.0),
    "node program": Fault(act=node_program, words=("node_lost",)),
    "deadline": Fault(act=deadline, moments=("before",), own_time=True, waits=True, words=("timeout",)),
    "rank": Fault(act=rank, moments=("train",), words=("killed",)),
    "slurmstepd of job": Fault(act=slurmstepd_of_job, moments=ALL, words=("cancelled",), only="slurm"),
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
    "walltime": Fault(act=walltime, moments=("train",), limited=True, waits=True, every=2, words=("timeout",)),
    "server restart": Fault(act=server_restart, moments=("start", "train"), waits=True, every=2, words=("cancelled",)),
    "cut": Fault(act=cut, moments=("train",), waits=True, every=2, words=("node_lost", "cancelled")),
}


# When a run is ended: after which of its steps, and how long after.


COMES_S = 150.0


def _job_runs(one: One) -> bool:
    return one.runs()


def _image_comes(one: One) -> bool:
    return bool(one.pids("-m", "containers.images"))


def _client_runs(one: One) -> bool:
    return bool(one.clients())


def _ranks_run(one: One) -> bool:
    return len(one.ranks()) >= one.all_ranks


def _is_pushed(one: One) -> bool:
    return any(one.place.run_dir(one.run_id).glob("**/.*.part-*"))


MOMENTS: dict[str, tuple[Callable[[One], bool], float]] = {
    "before": (_job_runs, 3.0),
    "load": (_image_comes, 2.0),
    "start": (_client_runs, 1.0),
    "train": (_ranks_run, 6.0),
    "push": (_is_pushed, 0.8),
}
"""Name -> what has come, and how many seconds later at most."""


def await_moment(one: One, name: str) -> float:
    """Until then; the seconds after what has come. Raises TimeoutError."""
    come, most_s = MOMENTS[name]
    give_up = time.monotonic() + COMES_S
    while not come(one):
        if time.monotonic() > give_up:
            raise TimeoutError(f"the run did not come to {name!r} within {COMES_S:g} s; it said: {one.log()[-2000:]}")
        time.sleep(0.05)
    seconds = one.rng.uniform(0.0, most_s)
    time.sleep(seconds)
    return seconds


# One ending: start a run, wait for the moment, end it, and measure until nothing of it is left on any node.


LOOK_S = 0.15
LIVES_S = 15.0
"""A fault that does not end the job (a slurmstepd is not the run): the job is cancelled after so long, and measured from there."""
GIVE_UP_S = 120.0
QUEUE_S = 90.0
OWN_TIME_S = (6.0, 16.0)
RANKS = ("start", "train")
"""Moments at which the supervisor lives, and has what a record needs."""
DEAF = 0.4
"""In so many of the runs that are ended while they train, the ranks ignore TERM."""


@dataclass
class Result:
    """What came of it."""

    moment: str = "-"
    nodes: int = 0
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def play(one: One, kind: str) -> Result:
    fault, result = FAULTS[kind], Result()
    short = fault.limited and one.place.words.shorten is None
    words = ("preempted",) if short else fault.words  # its supervisor knows from the beginning that the job ends before the run's time
    name = one.rng.choice(fault.moments)
    nodes = one.rng.choice((1, 2))
    try:
        if name == "load" or one.rng.random() < 0.2:
            one.place.forget_images()
        walltime_s = one.rng.uniform(*OWN_TIME_S) if fault.own_time else 120.0
        minutes = 1 if short else 5
        deaf = name == "train" and one.rng.random() < DEAF
        one.start(much=name == "push", deaf=deaf, walltime_s=walltime_s, minutes=minutes, nodes=nodes)
        result.notes += ["deaf to TERM"] if deaf else []
        result.nodes = len(one.nodes)
        after = 0.0 if fault.own_time else await_moment(one, name)
        result.moment = "own" if fault.own_time else f"{name} +{after:.1f} s"
        _strike_and_measure(one, fault, result)
    except (TimeoutError, RuntimeError) as error:
        result.problems.append(str(error))
    _tidy(one, result)
    result.problems += one.others.wrong(one.struck if fault.daemon else None)
    ends = one.place.ends(one.began)
    result.notes += [status for status, _ in ends]
    if "ok" in result.notes and name != "push":
        result.problems.append("the run ended by itself")
    if words is not None:
        result.problems += [f"a record says {status}: {why}" for status, why in ends if status not in (*words, "ok")]
    if words and not ends and (fault.own_time or name in RANKS):
        result.problems.append("no record says how it ended")
    if result.problems:
        result.problems.append(f"it said: {one.log()[-3000:]}")
    return result


def _strike_and_measure(one: One, fault: Fault, result: Result) -> None:
    one.struck = one.rng.choice(one.nodes)
    began = time.monotonic()
    then = fault.act(one)
    if fault.waits:
        began = time.monotonic()
    if fault.stills:
        result.seconds = _measure(one, began, lambda: _in_containers(one), result, lives=True)
    else:
        result.seconds = _measure(one, began, lambda: _left(one), result)
    if then is not None:
        then()
    if fault.stills:
        _measure(one, time.monotonic(), lambda: _left(one), result)
    if result.seconds is not None and result.seconds > fault.bound_s:
        result.problems.append(f"took {result.seconds:.1f} s, longer than {fault.bound_s:g} s")


def _in_containers(one: One) -> list[str]:
    return [f"rank {pid}" for pid in one.ranks()] or one.containers_left()


def _left(one: One) -> list[str]:
    return one.processes_left() or one.locks_held() or one.containers_left()


def _measure(one: One, began: float, left: Callable[[], list[str]], result: Result, *, lives: bool = False) -> float | None:
    """Seconds until `left` is empty; None and a problem where it does not become so."""
    while found := left():
        now = time.monotonic()
        if not lives and now - began > LIVES_S and one.runs():
            one.order(one.place.words.cancel)
            began, lives = now, True
            result.notes.append("job lived on: cancelled")
        if now - began > GIVE_UP_S:
            result.problems.append(f"still there after {GIVE_UP_S:g} s: {'; '.join(found[:5])}")
            return None
        time.sleep(LOOK_S)
    return time.monotonic() - began


def _tidy(one: One, result: Result) -> None:
    """The job leaves the queue, the nodes take jobs again; files that wait for the next start are told."""
    if one.job:
        one.order(one.place.words.cancel)
        give_up = time.monotonic() + QUEUE_S
        while one.listed():
            if time.monotonic() > give_up:
                result.problems.append(f"job {one.job} is in the queue after {QUEUE_S:g} s")
                break
            time.sleep(0.3)
    for node, state in one.cluster.states().items():
        if state.rstrip("*-") not in schedulers.of(one.cluster.spec).USABLE:
            result.notes.append(f"{node} {state}")
            one.cluster.heal(node)
    if created := one.take_created():
        result.notes.append(f"{len(created)} created, never started, for the next start")
    if halves := one.place.halves():
        result.notes.append(f"{len(halves)} unpacked for nobody, for the next start")
    if files := one.place.files_left() - one.files_before:
        result.notes.append(f"{len(files)} files for the next start")
