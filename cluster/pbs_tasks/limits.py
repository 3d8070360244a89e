"""Time limits of what starts programs on the nodes of a PBS job."""

from __future__ import annotations

from typing import Final

WORDS_EVERY_S: Final = 2.0
"""How often a launch looks for what its program has said, on shared storage."""
ORDER_LATE_S: Final = 30.0
"""How late shared storage may show a new file to another host."""
LINE_S: Final = 60.0
"""How long a launch waits for the first line of its standard input, which whoever starts it has at hand."""
FORWARD_S: Final = 4.0
"""How long it may take to signal a program on another node."""
END_S: Final = 12.0
"""How long a launch that was told to end waits for its program: a node program needs 10 s at most."""
OLD_LAUNCH_S: Final = 7 * 86400.0
"""What a launch that was killed has left, is taken away when it is so old."""
