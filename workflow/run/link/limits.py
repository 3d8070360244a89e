"""Time limits of the link between supervisor and node programs, and those that both sides keep."""

from __future__ import annotations

from typing import Final

HANDSHAKE_S: Final = 3.0
"""How long who connects may take to prove that it knows the run's token: strangers must not keep the listener busy."""
NODE_CONNECT_S: Final = 60.0
"""How long after its launch a node program may take until it is ready: it tries to connect for as long as the supervisor waits for it."""
CONNECT_TRY_S: Final = 10.0
"""How long one try to connect may take: one that is not answered must not use up all of NODE_CONNECT_S."""
CONNECT_FIRST_PAUSE_S: Final = 0.05
"""The pause after the first try to connect; each one after it is twice as long."""
CONNECT_LONGEST_PAUSE_S: Final = 2.0
"""The longest pause between two tries to connect: a listener that is there is found soon."""
CANCELLED_PUSH_S: Final = 10.0
"""How long a push may still take when the run is told to end: schedulers kill what is left some 30 s after that, and what is kept on the
nodes has to be noted before."""
