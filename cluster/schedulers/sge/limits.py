"""Time limits of our questions to Grid Engine."""

from __future__ import annotations

from typing import Final

ANSWER_S: Final = 20.0
"""How long one command may take where nothing else is said."""
QUICK_ANSWER_S: Final = 5.0
"""The same for what is of use only if it is known soon."""
PATIENCE_S: Final = 60.0
"""How long a qmaster that is silent is asked again where nothing else is said."""
SHORT_PATIENCE_S: Final = 2.0
"""The same for what must be known now or not at all."""
QSUB_S: Final = 120.0
"""How long one call of qsub may take: a call that is cut off may have submitted the job nevertheless."""
EARLY_S: Final = 10.0
"""So long before `h_rt` is over the job must have ended: on other nodes than the first its clock begins at dispatch, up to 3 s earlier."""
SHORT_NOTICE_S: Final = 15.0
"""A queue that kills sooner after its warning may leave no record of a cancelled run."""
STEP_S: Final = 40.0
"""How long the doctor's programs on all nodes may take."""
