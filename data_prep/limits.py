"""Set the time limits of building, caching, staging and trying out datasets."""

from typing import Final

BUILDER_WAIT_S: Final = 600.0
"""The time to wait for another builder of the same dataset. After it the work is done twice, and the result is right too."""
BUILDER_DEAD_S: Final = 3600.0
"""A part of another host's builder that nobody has touched for so long, by storage's own clock, has no writer."""
LOCK_LOOK_S: Final = 0.1
"""The time between two progress notes of the holder in a lock of the cache, and between two looks of those who wait."""

RECHECK_S: Final = 5.0
"""The time for hashing chunks of a dataset that is on the node already, at each use."""
PEER_HANDSHAKE_S: Final = 5.0
"""The shortest limit for another node's proof that it belongs to the run."""
PEER_BEAT_EVERY_S: Final = 1.0
"""The interval at which nodes that stage the same files send a sign of life."""
PEER_HANG_S: Final = 8.0
"""The time after which a silent node is given up."""
PEER_LATE_S: Final = 3.0
"""The share of a node that has brought nothing for so long is read by others."""
EXCHANGE_TURN_S: Final = 0.25
"""The longest wait of a stager for messages before it looks at its other work."""
SLOW_SCAN_EVERY_S: Final = 0.25
"""The interval at which a stager looks for nodes that do not bring their share."""
STAGING_PROGRESS_EVERY_S: Final = 0.5
"""The interval of a stager's progress messages."""

PUSH_STALL_S: Final = 600.0
"""The time without a byte that moved after which the push of a result that waits on a node is given up."""

DROP_PAUSE_S: Final = 0.05
"""The interval at which pages that stayed in memory are dropped again."""

UNPICKLE_CPU_S: Final = 60.0
"""The time of a core to read a pickle of CIFAR, which takes less than one second; UNPICKLE_S holds where storage or the machine is slow."""
UNPICKLE_S: Final = 600.0
