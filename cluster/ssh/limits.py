"""Time limits of connections to other hosts."""

from __future__ import annotations

from typing import Final

CONNECT_S: Final = 20
"""The time limit until a host answers."""
ALIVE_S: Final = 5
"""How often a line is asked whether it lives; after ALIVE_COUNT questions without an answer it counts as cut."""
ALIVE_COUNT: Final = 3
SILENT_S: Final = 20.0
"""The time limit of an answer of a host by paramiko."""
PERSIST_S: Final = 600
"""How long a connection without use stays open, so that a second factor is not asked for at each command."""
MUX_S: Final = 10.0
"""The time limit of a query to the master connection of this machine."""
ASK_S: Final = 300.0
"""The time limit of a login by a person with a second factor."""
CONFIG_S: Final = 20.0
"""The time limit of `ssh -G`, which may execute a command of the user's configuration."""
COPY_START_S: Final = 120.0
"""The time limit of a copy, in addition to the time that its bytes take at SLOWEST_BYTES_PER_S."""
SLOWEST_BYTES_PER_S: Final = 8192
MEMBER_BYTES: Final = 16384
"""The most bytes that tar needs for a member in addition to its content, with a long name."""
POLL_S: Final = 0.5
"""The pause between two looks at what has no descriptor of its own."""
