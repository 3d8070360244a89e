"""Time limits of our questions to PBS, of submissions, and of what starts programs on nodes."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 20.0
"""How long one command of PBS may take where nothing else is said."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long a server that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
QSUB_S: Final = 120.0
"""How long one call of qsub may take: a call that is cut off may have submitted the job nevertheless."""

DOCTOR_PATIENCE_S: Final = 5.0
"""How long the doctor asks a server that is silent again."""
STEP_S: Final = 40.0
"""How long the doctor's programs on all nodes may take."""
