"""One ending: start a run, wait for the moment, end it, and measure until nothing of it is left on any node."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.endings.faults import FAULTS, Fault
from tests.endings.moments import await_moment
from tests.endings.one import One
from tests.minicluster import schedulers

LOOK_S = 0.15
LIVES_S = 15.0
"""A fault that does not end the job (a slurmstepd is not the run): the job is cancelled after so long, and measured from there."""
GIVE_UP_S = 120.0
QUEUE_S = 90.0
SUBMIT = "submit"
OWN_TIME_S = (6.0, 16.0)
RANKS = ("start", "train")
"""Moments at which the supervisor lives, and has what a record needs."""
DEAF = 0.4
"""In so many of the runs that are ended while they train, the ranks ignore TERM."""


@dataclass
class Result:
    """What came of it."""

    moment: str = "-"
    way: str = "batch"
    nodes: int = 0
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def play(one: One, kind: str, *, submitted: bool) -> Result:
    fault, result = FAULTS[kind], Result()
    short = fault.limited and one.place.words.shorten is None
    words = ("preempted",) if short else fault.words  # its supervisor knows from the beginning that the job ends before the run's time
    name = one.rng.choice([moment for moment in fault.moments if not (submitted and moment == "push")])
    nodes = 2 if submitted else one.rng.choice((1, 2))
    try:
        if name == "load" or one.rng.random() < 0.2:
            one.place.forget_images()
        walltime_s = one.rng.uniform(*OWN_TIME_S) if fault.own_time else 120.0
        minutes = 1 if short else 5
        deaf = not submitted and name == "train" and one.rng.random() < DEAF
        one.start(submitted=submitted, much=name == "push", deaf=deaf, walltime_s=walltime_s, minutes=minutes, nodes=nodes)
        result.notes += ["deaf to TERM"] if deaf else []
        result.way, result.nodes = SUBMIT if submitted else "batch", len(one.nodes)
        after = 0.0 if fault.own_time else await_moment(one, name)
        result.moment = "own" if fault.own_time else f"{name} +{after:.1f} s"
        _strike(one, fault, result)
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


def _strike(one: One, fault: Fault, result: Result) -> None:
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
    bound_s = fault.submitted_bound_s if result.way == SUBMIT else fault.bound_s
    if result.seconds is not None and result.seconds > bound_s:
        result.problems.append(f"took {result.seconds:.1f} s, longer than {bound_s:g} s")


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
