"""When a run is ended: after which of its steps, and how long after."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.endings.one import One

COMES_S = 150.0


def _job_runs(one: One) -> bool:
    return one.runs()


def _image_comes(one: One) -> bool:
    return bool(one.pids("containers.images", "load"))


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
