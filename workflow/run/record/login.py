"""The first of the seven steps, `login`: from the start of the command that was typed until its study is checked and planned. It travels in
the environment, as a sum of durations, so that no clocks of two machines are compared; the same for all runs of one start. Pure.

`slipway run` and Snakemake count their own time until the plan is made; `slipway submit` until it hands its job over, and `slipway remote`
counts before that from its own start on the laptop, with logging in and sending. What the job of `slipway submit` plans once more is no
login.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from cluster.schedulers.jobs import SUBMISSION

LOGIN: Final = "SLIPWAY_LOGIN_S"
"""Environment variable: seconds of login until now."""


def login_s(environ: Mapping[str, str]) -> float | None:
    """Seconds; None where nobody counted them."""
    try:
        found = float(environ.get(LOGIN, ""))
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def with_login(environ: Mapping[str, str], age_s: float) -> dict[str, str]:
    """What the environment of the next command gains, after `age_s` seconds of this one."""
    return {LOGIN: f"{(login_s(environ) or 0.0) + max(0.0, age_s):.3f}"}


def planned(environ: Mapping[str, str], age_s: float) -> dict[str, str]:
    """The same of a Snakemake that has made its plan."""
    is_over = SUBMISSION in environ and login_s(environ) is not None
    return {} if is_over else with_login(environ, age_s)
