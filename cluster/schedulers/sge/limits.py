"""Times that only Grid Engine has."""

from __future__ import annotations

from typing import Final

EARLY_S: Final = 10.0
"""So long before `h_rt` is over the job must have ended: on other nodes than the first its clock begins at dispatch, up to 3 s earlier."""
SHORT_NOTICE_S: Final = 15.0
"""A queue that kills sooner after its warning may leave no record of a cancelled run."""
ORPHANS_S: Final = 60
"""So long the script waits for what a killed program has started: as long as `-notify` leaves before the end of a job."""
