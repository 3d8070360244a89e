"""Run one loop in one thread, over readable descriptors, timers, signals and child processes. It never sleeps and nothing in it blocks."""

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from base import calls, jsonfile, process

LONGEST_WAIT_S = 3600.0  # epoll takes no more than 24 days
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ignore_signals(more: tuple[signal.Signals, ...] = ()) -> None:
    """Ignore signals in the last moments of a process: Python takes its handlers away before it ends, and a signal would be the exit
    code."""
    for number in (*SIGNALS, *more):
        signal.signal(number, signal.SIG_IGN)


class HasFileno(Protocol):
    """A socket, a pipe, a LimitedCall."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Timer:
    """A call that will happen; `cancel()` to prevent it."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancel the call, unless it has been made."""
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """An event loop. Callbacks run in the loop of whoever waits; what they raise, the waiting place raises."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._wakeup: tuple[int, int] | None = None
        self.private: list[int] = []
        """Descriptors that are not watched, and that a child that may hang must not keep open either."""

    def watch(self, source: int | HasFileno, callback: Callable[[], None], write: Callable[[], None] | None = None) -> None:
        """Call `callback` whenever `source` is readable, and `write` while it is writable if that is given. Watching again changes it."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if self.watches(source):
            self._selector.modify(source, events, (callback, write))
        else:
            self._selector.register(source, events, (callback, write))

    def unwatch(self, source: int | HasFileno) -> None:
        """Forget `source`; to be called before it is closed. Nothing if it is not watched."""
        if self.watches(source):
            self._selector.unregister(source)

    def watches(self, source: int | HasFileno) -> bool:
        return source in self._selector.get_map()

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `seconds` from now."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), timer))
        return timer

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` again and again, for good."""

        def again() -> None:
            self.after(seconds, again)
            callback()

        self.after(seconds, again)

    def on_signals(self, callback: Callable[[int], None], more: tuple[signal.Signals, ...] = ()) -> None:
        """Call `callback(number)` in the loop for TERM, INT and HUP, and for `more`."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = (reader, writer)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        numbers = (*SIGNALS, *more)
        for number in numbers:
            signal.signal(number, lambda _number, _frame: None)

        def arrived() -> None:
            for number in os.read(reader, 64):
                if number in numbers:
                    callback(number)

        self.watch(reader, arrived)

    def descriptors(self) -> list[int]:
        """Return all descriptors watched here, and the loop's own: a forked child that may hang must not keep them open."""
        own = [self._selector.fileno()] if isinstance(self._selector, selectors.EpollSelector) else []
        return [*own, *(key.fd for key in self._selector.get_map().values()), *(self._wakeup[1:] if self._wakeup else ()), *self.private]

    def until(self, done: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Run the loop until `done()`; False if that did not happen within `limit_s`."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not done():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._once(deadline)
        return True

    def _once(self, deadline: float | None) -> None:
        for key, events in self._selector.select(self._timeout(deadline)):
            if not self._still(key):
                continue  # a callback before this one has closed it
            read, write = key.data
            if events & selectors.EVENT_READ:
                read()
            if events & selectors.EVENT_WRITE and write is not None and self._still(key):
                write()
        now = time.monotonic()  # a timer that is set anew at once keeps nobody waiting
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].fire()

    def _still(self, key: selectors.SelectorKey) -> bool:
        found = self._selector.get_map().get(key.fd)
        return found is not None and found.fileobj is key.fileobj

    def _timeout(self, deadline: float | None) -> float | None:
        moments = [moment for moment in (deadline, self._timers[0][0] if self._timers else None) if moment is not None]
        return min(LONGEST_WAIT_S, max(0.0, min(moments) - time.monotonic())) if moments else None


# Calls that may hang, in child processes.


def in_child(descriptors: Sequence[int], parent: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` in a child that dies with `parent` and keeps none of its `descriptors`: a child that hangs in storage would hold
    connections and locks open after the parent's end."""
    process.die_with_parent(parent)
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return jsonfile.plain(function(*arguments))


class Call:
    """A call `function(*arguments)` in a child that dies with us. `renewed`: see LimitedCall."""

    def __init__(
        self,
        loop: Loop,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        renewed: bool = False,
    ) -> None:
        process.prepare_prctl()
        arguments = (loop.descriptors(), os.getpid(), function, *arguments)
        self._call = calls.LimitedCall(what, in_child, *arguments, timeout_s=timeout_s, renewed=renewed)
        self._loop = loop
        self._timer = loop.after(timeout_s, self._overdue)
        self._then: Callable[[Call], None] = lambda _call: None
        self.finished = False
        self._late = False
        loop.watch(self._call, self._readable)

    def then(self, function: Callable[["Call"], None]) -> Self:
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

    def result(self, kind: Any = Any) -> Any:
        """Return what the function returned, as a value of `kind`. Raises what it raised, of our tree; StorageError when its time was
        over."""
        if self._late:
            raise self._call.late()
        return jsonfile.from_plain(self._call.result(), kind)

    def wait(self) -> Any:
        """Run the loop until the end; the result."""
        self._loop.until(lambda: self.finished)
        return self.result()
