"""End a worker process when the program that started it ends."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int = 0) -> None:
    """Let the kernel kill this process when its parent's forking thread ends (Linux). It is called first in every worker. `parent` is the
    expected parent's pid: if it is gone already, this process ends at once."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
