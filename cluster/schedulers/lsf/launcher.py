"""`blaunch`: a program on one node of our job. Pure.

Output comes back and standard input goes there, the exit code is lost: what became of a node program its link says. When the client is
killed, LSF kills the program. OpenLava hands the words over as they are, where LSF may give them to a shell of the node once more: only
words that mean the same both times are handed over. USR2, which all of a job get whose time is over, would end the client, and with it the
program.

OpenLava's client ends at times with 0 and without a word, just after its program was started: it asks at once what the program uses, and
takes it for ended where the node cannot say that yet. The program may live on, or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from base.errors import AllocationError
from cluster.schedulers.lsf.environ import NODE

DEAF: Final = "trap '' USR2; exec \"$@\""


def launch_argv(host: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The program learns LSF's name of its node. Raises AllocationError for words that a shell would change."""
    words = ("env", f"{NODE}={host}", *argv)
    changed = next((word for word in words if not re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII)), None)
    if changed is not None:
        raise AllocationError(
            f"blaunch cannot hand over {changed!r}: a shell of the node may change it; in paths of Slipway and its Python use "
            "letters, digits and @ % + = : , . / - _ only"
        )
    return ("/bin/sh", "-c", DEAF, "slipway-launch", "blaunch", "-z", host, *words)
