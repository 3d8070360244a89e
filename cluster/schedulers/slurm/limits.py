"""Time limits of our questions to Slurm: in general, at submission, for Snakemake's plugin, and of the doctor."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 20.0
"""How long one command of Slurm may take where nothing else is said."""
SHORT_ANSWER_S: Final = 12.0
"""The same where somebody waits, the doctor or Snakemake's plugin: Slurm's own commands give up after MessageTimeout, 10 s where the site
has not changed it."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long a controller that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
FIRST_PAUSE_S: Final = 0.5
"""The pause before it is asked again for the first time; each one after it is twice as long."""
LONGEST_PAUSE_S: Final = 15.0
"""The longest pause between two questions."""
REQUEUE_PATIENCE_S: Final = 30.0
"""How long a controller that is silent is asked again to put a job back into the queue."""

SBATCH_S: Final = 120.0
"""How long one call of sbatch may take: a call that is cut off may have submitted the job nevertheless."""
SETTLE_S: Final = 3.0
"""How long a controller that has just come back may answer questions before it has taken in a submission that came earlier."""
SUBMIT_PATIENCE_S: Final = 600.0
"""How long a submission is tried again while the controller is silent."""
PLUGIN_SUBMIT_PATIENCE_S: Final = 3600.0
"""The same for Snakemake's plugin, which would give up the whole study."""
PLUGIN_PATIENCE_S: Final = 30.0
"""How long a question of the plugin's is asked again, which gives squeue and scancel 60 s: a last try may begin just before the end."""
CONFIG_ANSWER_S: Final = 4.0
"""How long `scontrol show config` may take: the plugin gives it 5 s."""
CONFIG_COPY_AGE_S: Final = 600.0
"""How old our copy of its answer may be before it is asked again."""
KNOWN_AFTER_S: Final = 60.0
"""So long after its submission a job that squeue does not show has ended, and was forgotten by the controller (MinJobAge)."""
PLUGIN_LONGEST_PAUSE_S: Final = 180.0
"""The longest pause between two questions of the plugin's for the states of its jobs."""

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
