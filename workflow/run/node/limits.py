"""Time limits of the node program, in the order of a run: token, supervisor, preparation, ranks, end."""

from typing import Final

TOKEN_S: Final = 60.0
"""How long after its start a node program waits for the run's token: as long as the supervisor waits for the node program. A launcher may
hold the standard input open for ever after its job was cancelled (LSF)."""
SUPERVISOR_SILENCE_S: Final = 60.0
"""The time without a message after which the supervisor is lost: longer than a node may be silent, so that the supervisor notices first."""
NODE_ALIVE_EVERY_S: Final = 2.0

LEFTOVERS_END_S: Final = 5.0
"""How long killed processes of an earlier attempt are waited for."""
LOOK_S: Final = 30.0
"""How long the look for what a program needs may take, before anything is staged: mounts may lie on a network storage."""
NODE_PREPARATION_S: Final = 90.0
"""How long the engine's preparation on this node, and the look at who else uses its GPUs, may take."""
PACKAGES_S: Final = 60.0
"""How long the interpreter of a program may take to say which packages it has: it starts, and looks into directories."""
COPIES_REMOVAL_S: Final = 60.0
"""How long the removal of an image's archive and of checkpoints from the cache may take; the ranks start after it."""

RANK_LOOK_EVERY_S: Final = 1.0
"""How often what the ranks have written is looked at, and at least in a measured window."""
WINDOW_WAIT_S: Final = 0.02
"""The interval of these reads before the window, where nothing is measured that they could disturb."""
WINDOW_WAITS_S: Final = 600.0
"""How long WINDOW_WAIT_S applies, from the start of a rank and again from its first step: some programs never report a measured step."""
WINDOW_LOOK_S: Final = 0.01
"""How often at the most in the window."""
WATCHER_END_S: Final = 1.0
"""How long the watchers of this machine may take for a last look."""

RANKS_TERM_S: Final = 5.0
"""How long ranks may take to end after TERM; then they are killed."""
RANKS_END_S: Final = 9.0
"""How long ranks may take to end in all; then what is left is killed with all descendants of the node program."""
DESCENDANTS_END_S: Final = 1.0
CONTAINER_REMOVAL_S: Final = 60.0
"""How long the removal of the container may take: more than an engine gives its own daemon."""
DELIVERY_STALL_S: Final = 600.0
"""How long the push of results that lie on this node may go on without a byte that moves."""
