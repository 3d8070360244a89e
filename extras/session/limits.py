"""The time limits of a session, each with its reason."""

from __future__ import annotations

from typing import Final

READY_LOOK_S: Final = 1.0
"""How often a program that has been started is asked whether it answers."""
PAGE_S: Final = 15.0
"""How often it is asked, once it does, how long nobody has used it."""
LOOK_S: Final = 5.0
"""How often storage is asked whether somebody wants the session's end."""
OUTPUT_S: Final = 2.0
"""How often what a command prints is brought to storage, where whoever waits for it reads it."""
START_S: Final = 600.0
"""How long a program may take until it answers: large images import for minutes."""
ANSWER_S: Final = 30.0
"""How long one of these questions may take in all, of a program and a storage that hang."""
STATE_S: Final = 20.0
"""How long storage may take to note how the session stands."""
WARN_S: Final = (900.0, 300.0, 60.0)
"""How long before its end the users of a session are told."""
PUSH_AGAIN_S: Final = 10.0
"""Between two tries to push, and how long the last one may take where the time is over."""
STOP_WAIT_S: Final = 120.0
"""How long `slipway session stop` waits for a session that ends by itself."""
GONE_S: Final = 60.0
"""How old the last word of a session must be before it counts as gone where its job is not in the queue: jobs show up late."""
