"""Calls that may hang, in child processes, waited for in the event loop."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from base.limited import LimitedCall
from cluster.processes import die_with_parent, prepare_prctl
from workflow.run.link.event_loop import Loop


def apart(descriptors: Sequence[int], parent: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` in a child that dies with `parent` and keeps none of its `descriptors`: a child that hangs in storage would hold
    connections and locks open after the parent's end."""
    die_with_parent(parent)
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return function(*arguments)


class Call:
    """`function(*arguments)` in a child that dies with us. `renewed`: see LimitedCall."""

    def __init__(
        self,
        loop: Loop,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        keep: tuple[int, ...] = (),
        renewed: bool = False,
    ) -> None:
        prepare_prctl()
        private = [descriptor for descriptor in loop.descriptors() if descriptor not in keep]
        self._call = LimitedCall(what, apart, private, os.getpid(), function, *arguments, timeout_s=timeout_s, renewed=renewed)
        self._loop = loop
        self._timer = loop.after(timeout_s, self._overdue)
        self._then: Callable[[Call], None] = lambda _call: None
        self.finished = False
        self._late = False
        loop.watch(self._call, self._readable)

    def then(self, function: Callable[[Call], None]) -> Self:
        """Call `function(call)` in the loop when it has ended or its time is over."""
        self._then = function
        return self

    def _readable(self) -> None:
        fileno = self._call.fileno()
        ended = self._call.done()
        if ended:
            self._loop.unwatch(fileno)
            self._finish()

    def _overdue(self) -> None:
        left = self._call.deadline - time.monotonic()
        if left > 0:  # bytes have moved
            self._timer = self._loop.after(left, self._overdue)
            return
        self._late = True
        self.abandon()
        self._finish()

    def _finish(self) -> None:
        self._timer.cancel()
        self.finished = True
        self._then(self)

    def abandon(self) -> None:
        """Forget it: the child is killed, and not waited for."""
        if not self.finished:
            self._timer.cancel()
            self._loop.unwatch(self._call.fileno())
            self._call.abandon()
            self.finished = True

    def result(self) -> Any:
        """What the function returned. Raises what it raised, of our tree; StorageError when its time was over."""
        if self._late:
            raise self._call.late()
        return self._call.result()

    def wait(self) -> Any:
        """Run the loop until the end; the result."""
        self._loop.until(lambda: self.finished)
        return self.result()
