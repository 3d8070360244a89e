"""Time limits that only Slurm has."""

from __future__ import annotations

from typing import Final

SHORT_ANSWER_S: Final = 12.0
"""How long one command may take where somebody waits: Slurm's own commands give up after MessageTimeout, 10 s where the site
has not changed it."""
REQUEUE_PATIENCE_S: Final = 30.0
"""How long a controller that is silent is asked again to put a job back into the queue."""

ASKED_WITHIN_S: Final = 60.0
"""Slurm is asked within this time why a job has ended."""
SLOW_STEP_S: Final = 10.0
"""A step that takes longer is called slow."""
SLOW_CONTROLLER_S: Final = 2.0
"""A controller that takes longer to answer is called busy."""
NODE_STOP_S: Final = 10.0
"""A node program needs at most this long to stop all that it started: KillWait should be longer."""
