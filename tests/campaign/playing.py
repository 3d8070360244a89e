"""One round from its start to the look at what is left."""

from __future__ import annotations

import contextlib
import subprocess
import time

from tests.campaign.faults import FAULTS, TooLateError
from tests.campaign.look import look, missing
from tests.campaign.rounds import RUNS, Round, wait_for
from tests.minicluster import queue

ROUND_S = 420.0
MOST_S = 8.0
AGAIN = 4
TOO_LATE = "too late"
"""The study was over before its fault: neither right nor wrong."""


def play(one: Round) -> str:
    """One round; an empty text, or what is wrong."""
    fault = FAULTS[one.fault]
    process = one.start()
    done, seconds = one.rng.randrange(RUNS - 1), one.rng.uniform(0.0, MOST_S)
    one.moment = f"{done} runs and {seconds:4.1f} s"
    with contextlib.suppress(TimeoutError):
        wait_for(f"{done} runs", lambda: process.poll() is not None or one.records() >= done, ROUND_S)
    try:
        process.wait(seconds)
        return TOO_LATE
    except subprocess.TimeoutExpired:
        try:
            heal = fault.act(one)
        except TooLateError:
            return TOO_LATE
        if heal is not None:
            time.sleep(one.rng.uniform(0.3, 1.0) * fault.lasts_s)
            heal()
    try:
        for _ in range(AGAIN):
            code = process.wait(ROUND_S)
            for other in one.beside:
                other.wait(ROUND_S)
            wait_for("the queue to become empty", lambda: not one.jobs(), 120)
            if code == 0 and not missing(one):
                break
            process = one.start()
        else:
            return f"not finished after {AGAIN} times: missing {missing(one)}, exit code {process.poll()}"
        return look(one, fault.words)
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        for command in (process, *one.beside):
            command.kill()
        for job in one.jobs():
            queue.order(one.cluster, queue.words_of(one.cluster).cancel, job)
        return f"hangs: {error}"
