"""One round from its start to the look at what is left."""

from __future__ import annotations

import contextlib
import subprocess
import time

from tests.slurm.campaign.faults import FAULTS
from tests.slurm.campaign.look import look, missing
from tests.slurm.campaign.rounds import RUNS, Round, wait_for

ROUND_S = 420.0
AGAIN = 4


def play(one: Round, fault: str) -> str:
    """One round; an empty text, or what is wrong."""
    act, lasts_s = FAULTS[fault]
    process = one.start()
    done, seconds = one.rng.randrange(RUNS), one.rng.uniform(0.0, 15.0)
    one.moment = f"{done} runs and {seconds:4.1f} s"
    with contextlib.suppress(TimeoutError):
        wait_for(f"{done} runs", lambda: process.poll() is not None or one.records() >= done, ROUND_S)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        heal = act(one)
        if heal is not None:
            time.sleep(one.rng.uniform(0.3, 1.0) * lasts_s)
            heal()
    try:
        for _ in range(AGAIN):
            code = process.wait(ROUND_S)
            wait_for("the queue to become empty", lambda: not one.jobs(), 120)
            if code == 0 and not missing(one):
                break
            process = one.start()
        else:
            return f"not finished after {AGAIN} times: missing {missing(one)}, exit code {process.poll()}"
        return look(one)
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        process.kill()
        for job in one.jobs():
            one.cluster.exec("login", ["scancel", job])
        return f"hangs: {error}"
