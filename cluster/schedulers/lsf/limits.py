"""Time limits of our questions to LSF."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 20.0
"""How long one command may take where nothing else is said: while mbatchd is away, LSF's commands wait for ever."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long an mbatchd that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
BSUB_S: Final = 120.0
"""How long one call of bsub may take: a call that is cut off may have submitted the job nevertheless."""
EARLY_S: Final = 5.0
"""LSF looks at run limits every few seconds: so long before its end a job that is ended counts as one whose time is over."""
STEP_S: Final = 40.0
"""How long the doctor's programs on all nodes may take."""
