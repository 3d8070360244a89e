"""Ports for programs that a test starts."""

import atexit
from contextlib import ExitStack
from typing import Final

from workflow.run.node.ranks import Reservation

_HELD: Final = ExitStack()
atexit.register(_HELD.close)


def held_ports(count: int = 1, address: str = "127.0.0.1") -> tuple[int, ...]:
    """Return free ports that stay bound until this process ends: a program may listen there, and the kernel gives them to nobody else.

    A port that is closed again before the program binds it can become the rendezvous port of a run that another test process starts.
    """
    reservation = Reservation(address, count)
    _HELD.callback(reservation.release)
    return reservation.ports
