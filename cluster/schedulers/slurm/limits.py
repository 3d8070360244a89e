"""Time limits of our questions to Slurm: in general, at submission, and of the doctor."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 20.0
"""How long one command of Slurm may take where nothing else is said."""
SHORT_ANSWER_S: Final = 12.0
"""The same where somebody waits: Slurm's own commands give up after MessageTimeout, 10 s where the site
has not changed it."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long a controller that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
REQUEUE_PATIENCE_S: Final = 30.0
"""How long a controller that is silent is asked again to put a job back into the queue."""

SBATCH_S: Final = 120.0
"""How long one call of sbatch may take: a call that is cut off may have submitted the job nevertheless."""

ASKED_WITHIN_S: Final = 60.0
"""Slurm is asked within this time why a job has ended."""
DOCTOR_PATIENCE_S: Final = 5.0
"""How long the doctor asks a controller that is silent again."""
STEP_S: Final = 40.0
"""How long the doctor's step on all nodes may take."""
SLOW_STEP_S: Final = 10.0
"""A step that takes longer is called slow."""
SLOW_CONTROLLER_S: Final = 2.0
"""A controller that takes longer to answer is called busy."""
NODE_STOP_S: Final = 10.0
"""A node program needs at most this long to stop all that it started: KillWait should be longer."""
