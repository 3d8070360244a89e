"""The process that started the supervisor: when it has ended, nobody wants the run's result any more."""

from __future__ import annotations

import os
from collections.abc import Callable

from workflow.run.link.event_loop import Loop


def watch_parent(loop: Loop, then: Callable[[], None]) -> None:
    """Call `then` in the loop when our parent process ends. Started by init itself, nobody is watched."""
    parent = os.getppid()
    if parent <= 1:
        return
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        loop.after(0, then)
        return
    if os.getppid() != parent:
        os.close(descriptor)
        loop.after(0, then)
        return

    def gone() -> None:
        loop.unwatch(descriptor)
        os.close(descriptor)
        then()

    loop.watch(descriptor, gone)
