"""Time limits of our questions to any scheduler, and of submissions that are not answered."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 20.0
"""How long one command may take where nothing else is said: while their server is away, those of some schedulers wait for ever."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long a server that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
DOCTOR_PATIENCE_S: Final = 5.0
"""How long the doctor asks a server that is silent again."""
STEP_S: Final = 40.0
"""How long the doctor's programs on all nodes may take."""
SUBMIT_S: Final = 120.0
"""How long one submission may take: one that is cut off may have submitted the job nevertheless."""

FIRST_PAUSE_S: Final = 0.5
"""The pause before a silent scheduler is asked again for the first time; each one after it is twice as long."""
LONGEST_PAUSE_S: Final = 15.0
"""The longest pause between two questions."""
SETTLE_S: Final = 3.0
"""How long a server that has just come back may answer questions before it has taken in a submission that came earlier."""
LEAST_S: Final = 10.0
"""For so long the job is looked for at least, also where the patience is over."""
