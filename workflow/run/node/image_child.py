"""`python -m containers.images load` as a child of the node program: the archive where it asks for one, its answer or its error, and its
end in any case."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from base.units import format_duration
from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import Count, Seconds, Value
from workflow.run.link.said import Loading, Progress, Waiting
from workflow.run.node.child import Problem, Worker, WorkLine, say_how_far
from workflow.run.node.limits import IMAGE_LOAD_S, IMAGE_PROGRESS_EVERY_S


class Loaded(Value, frozen=True, kw_only=True):
    """The image as it is on this node: its id, what the engine is given to start it, and how long the load took."""

    image_id: str
    start: str
    seconds: Seconds


class LoadLine(WorkLine, frozen=True, kw_only=True):
    """A line of `python -m containers.images load`."""

    failure: ClassVar[Problem] = ("ContainerError", "the load of the image")
    wants: Count | None = None
    """The bytes of the archive that it needs here."""
    image_id: str | None = None
    start: str | None = None
    seconds: Seconds | None = None
    error: Problem | None = None

    def answer(self) -> tuple[Loaded | None, Problem | None]:
        """See child.Answer."""
        if self.image_id is None or self.start is None or self.seconds is None:
            return None, self.error
        return Loaded(image_id=self.image_id, start=self.start, seconds=self.seconds), None


class ImageChild(Worker[Loaded]):
    """A running load. `say` is called in the loop, `wants()` where the archive is needed. What the engine has got when this is killed, it
    drops by itself."""

    def __init__(
        self,
        loop: Loop,
        argv: tuple[str, ...],
        say: Callable[[Loading | Progress | Waiting], None],
        wants: Callable[[], None],
        then: Callable[[Loaded | None, Problem | None], None],
        limit_s: float = IMAGE_LOAD_S,
    ) -> None:
        self._say, self._wants, self._limit_s = say, wants, limit_s
        self._since = self._limited_from = time.monotonic()
        self._asks = False
        """Whether it waits for the archive."""
        super().__init__(loop, argv, LoadLine, self._hear, then)
        self._look_later()

    def _look_later(self) -> None:
        self.loop.after(min(IMAGE_PROGRESS_EVERY_S, self._limit_s), self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if not self.is_open:
            return
        if now - self._limited_from >= self._limit_s and not self._asks:
            self.give_up(("ContainerError", f"the image was not here after {format_duration(self._limit_s)}; its load was ended"))
            return
        self._look_later()
        if not self._asks:
            self._say(Loading(seconds=now - self._since))

    def bring(self, archive: str) -> None:
        """A checked copy of the archive is here."""
        self._asks, self._limited_from = False, time.monotonic()
        self.tell(archive=archive)

    def _hear(self, line: LoadLine) -> None:
        say_how_far(self._say, "image", line)
        if line.wants is not None:
            self._asks = True
            self._wants()
