"""Time limits of building, caching, staging and trying out datasets."""

from __future__ import annotations

from typing import Final

BUILDER_WAIT_S: Final = 600.0
"""How long another builder of the same dataset is waited for: then the work is done twice, and the result is right too."""
BUILDER_DEAD_S: Final = 3600.0
"""A part of another host's builder that nobody has touched for so long, by storage's own clock, has no writer."""
HOLDER_TELLS_EVERY_S: Final = 0.1
"""How often, at most, who holds a lock of the cache writes into it how far it is."""

RECHECK_S: Final = 5.0
"""How long chunks of a dataset that is here already are hashed again at each use."""
PEER_HANDSHAKE_S: Final = 5.0
"""How long another node may take, at least, to prove that it is of this run."""
PEER_BEAT_EVERY_S: Final = 1.0
"""How often nodes that stage the same files show each other that they live."""
PEER_HANG_S: Final = 8.0
"""A node from which nothing has come for so long is given up."""
PEER_LATE_S: Final = 3.0
"""The share of a node that has brought nothing for so long is read by others."""
EXCHANGE_TURN_S: Final = 0.25
"""How long a stager waits at most for something to come before it looks at what else is to do."""
SLOW_SCAN_EVERY_S: Final = 0.25
"""How often it is looked which nodes do not bring their share."""
STAGING_SAID_EVERY_S: Final = 0.5
"""How often a stager says how far it is."""

TRIAL_S: Final = 3.0
"""How long the doctor writes to and reads from a place, to see how fast it is."""
TRIAL_DEAD_S: Final = 3600.0
"""What a killed doctor has left is removed when it is so old."""
