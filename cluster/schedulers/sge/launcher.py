"""`qrsh -inherit`: a program on one node of our job. Pure.

Its words are put together and read again by a shell of that node, so each is quoted. Output and exit code come back, standard input goes
there. A program that ends by a signal would end the whole job: a shell stands between, which makes an exit code of it. When the client is
killed, Grid Engine kills the program. USR2, which announces the end of a job (batch_script), goes to all processes: both shells make it be
ignored by what they start.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

LOCAL: Final = "trap '' USR2; exec \"$@\""
REMOTE: Final = "trap '' USR2; {command}; exit $?"


def launch_argv(host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The environment goes along (-V): see environ.passed_on."""
    words = ("/bin/sh", "-c", REMOTE.format(command=shlex.join(argv)))
    return ("/bin/sh", "-c", LOCAL, "slipway-launch", "qrsh", "-inherit", "-V", host, *map(shlex.quote, words))
