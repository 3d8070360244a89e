"""Time limits of engines, their containers and images. Those of the watchdog stand in it: it imports nothing of ours."""

from typing import Final

ENGINE_CALL_S: Final = 10.0
"""How long a call of an engine's client may take where nothing else is said: a client waits for ever for a daemon that hangs."""
ENGINE_CALL_MIN_S: Final = 1.0
"""What a call gets even where the time of all calls together is over."""
HOLDERS_S: Final = 20.0
"""How long schedulers may take in all to say whose jobs are alive: much less than a node program has for preparing its node."""

CONTAINER_START_S: Final = 60.0
"""How long an engine's client may take until the container's watchdog has come up."""
PYXIS_UNPACK_S: Final = 900.0
"""The same, of an engine that unpacks the whole image at every start."""
NODE_PROGRAM_SILENCE_S: Final = 20.0
"""How long a container's watchdog may see no beat of the node program before it ends the container."""
WATCHDOG_TERM_S: Final = 5.0
"""How long processes in a container may take to end after their watchdog's TERM; then it kills them."""
CLIENT_END_S: Final = 3.0
"""How long a client may take to end by itself when its container has ended."""
KILLED_CLIENT_S: Final = 0.2
"""How long a client that was killed may take to be gone when what is below it is: the kernel tells its children first."""
CONTAINER_REMOVE_S: Final = 45.0
"""How long an engine may take to remove a container: also a daemon that is slow for half a minute has done so by then."""

IMAGE_PULL_S: Final = 3600.0
IMAGE_LOCK_WAIT_S: Final = 3600.0
"""How long another load of the same image on this node is waited for."""
IMAGE_TAG_S: Final = 60.0
"""How long an engine may take to give an image a name, or to take one away."""
ARCHIVE_S: Final = 7200.0
"""How long an engine may take to write the archive of an image, or to load one."""
ARCHIVER_DEAD_S: Final = 2 * ARCHIVE_S
"""A part of an archive to which nothing was written for so long has no writer."""
IMAGE_UNUSED_S: Final = 7 * 86400.0
"""How long an image has been used by nobody before `slipway reap` removes it from a node."""
IMAGE_REMOVE_S: Final = 300.0
IMAGE_LIST_S: Final = 60.0
