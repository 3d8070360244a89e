"""Time limits of our questions to any scheduler, and of submissions that are not answered."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 0.5
"""The pause before a silent scheduler is asked again for the first time; each one after it is twice as long."""
LONGEST_PAUSE_S: Final = 15.0
"""The longest pause between two questions."""
SETTLE_S: Final = 3.0
"""How long a server that has just come back may answer questions before it has taken in a submission that came earlier."""
LEAST_S: Final = 10.0
"""For so long the job is looked for at least, also where the patience is over."""
