"""Time limits of this package: processes, GPUs, preflight, watching. Those of a scheduler stand with it."""

from typing import Final

CONTAINER_REMAINS_S: Final = 5.0
"""How long processes that remove what is left of a container are spared when all descendants are killed."""

GPU_LIST_S: Final = 30.0
"""How long nvidia-smi may take to list the GPUs: without persistence mode the driver is loaded first."""
GPU_USE_S: Final = 20.0
"""How long nvidia-smi may take to say what the GPUs do, and for whom."""
GPU_WATCH_ANSWER_S: Final = 15.0
"""The time limit of nvidia-smi while a run is watched: after several timeouts the GPUs are no longer watched."""
GPU_WATCH_EVERY_S: Final = 2.0
"""The period of GPU samples while a run is watched: nvidia-smi costs more than a look at the processes, on an H200 60 ms."""
LOAD_WATCH_EVERY_S: Final = 0.5

REACH_S: Final = 4.0
"""How long a node may take to connect to another one. The kernel asks again after 1 and 3 s: one lost packet is no fault."""
LATE_PARTNER_S: Final = 4.0
"""How long, beyond the rounds of a tournament, a partner may be late."""
PREFLIGHT_HANDSHAKE_S: Final = 3.0
TURNED_AWAY_S: Final = 2.0
"""How long a node retries to connect if it was refused because too many connected at once."""
TURNED_AWAY_PAUSE_S: Final = 0.02
"""The pause before it comes again for the first time; each one after it is twice as long."""

STORAGE_LOOK_S: Final = 1.0
STORAGE_WAIT_SHOWN_S: Final = 10.0
"""The time after which a command's wait for storage is shown."""
STORAGE_WAIT_S: Final = 120.0
"""The longest wait for storage of a command that has started nothing."""
SAME_INTERRUPT_S: Final = 1.0
"""So close together, two interrupts are one: whoever signals a process may signal all of its group too. Snakemake that gets a second one
leaves its runs to themselves."""
