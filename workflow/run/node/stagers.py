"""Start the children of a node program that stage a dataset, or a file, and that load an image, and hear how far they are."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import asdict

from base.humanize import format_duration
from cluster.types import CacheUser
from workflow.run.link.event_loop import Loop
from workflow.run.link.reports import Listening, Progress, StagedCopy, Value, Waiting, What
from workflow.run.node import limits
from workflow.run.node.child import Problem, Worker, WorkLine, report_progress

# The child that stages (`python -m data_prep.staging`).


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """The node's place among those that stage the same files at once, and where it listens for them. `token` proves it."""

    index: int
    nodes: int
    address: str
    token: bytes


def stage_argv(  # noqa: PLR0913 - the options of a program
    python: str,
    source: str,
    cache: str,
    *words: str,
    holder: CacheUser | None = None,
    max_bytes: int | None = None,
    bytes_per_s: float | None = None,
    group: bool = False,
    check_s: float | None = None,
    peer_group: PeerGroup | None = None,
) -> tuple[str, ...]:
    """Return the command that copies the dataset `source`, or with --single a file, into `cache`. `bytes_per_s`: for all readers of storage
    together; `check_s`: how long a dataset that is in the cache may be hashed."""
    options = {
        "--holder": None if holder is None else json.dumps(holder, sort_keys=True),
        "--max-bytes": max_bytes,
        "--bytes-per-s": None if bytes_per_s is None else f"{bytes_per_s:g}",
        "--check-s": None if check_s is None else f"{check_s:g}",
        "--peer-group": None if peer_group is None else f"{peer_group.index}/{peer_group.nodes}",
        "--address": None if peer_group is None else peer_group.address,
    }
    given = (word for name, value in options.items() if value is not None for word in (name, str(value)))
    argv = (python, "-P", "-m", "data_prep.staging", "--source", source, "--cache", cache)
    return (*argv, *given, *(("--group",) if group else ()), *words)


class Failure(Value, frozen=True, kw_only=True, rename={"name": "class"}):
    """The reason why nothing is staged."""

    name: str
    message: str


class Address(Value, frozen=True, kw_only=True):
    """The address at which the stager listens for those of the other nodes, and the chunks that it has: see
    data_prep/staging/exchange.py."""

    address: str
    port: int
    have: str


class StageLine(WorkLine[StagedCopy], frozen=True, kw_only=True):
    """A line of `python -m data_prep.staging`."""

    failure: ClassVar[Problem] = ("StagingError", "the staging process")
    listening: Address | None = None
    result: StagedCopy | None = None
    error: Failure | None = None

    def answer(self) -> tuple[StagedCopy | None, Problem | None]:
        return self.result, None if self.error is None else (self.error.name, self.error.message)


def stage_child(
    loop: Loop,
    what: What,
    argv: tuple[str, ...],
    report: Callable[[Progress | Listening | Waiting], None],
    then: Callable[[StagedCopy | None, Problem | None], None],
    peer_group: PeerGroup | None = None,
) -> Worker[StagedCopy]:
    """Start a staging process of `what`, with the other nodes of its `peer_group` or alone (None). In a group it goes on passing chunks to
    others after its result. A copy that is killed is resumed by the next stager."""

    def on_line(line: StageLine) -> None:
        report_progress(report, what, line)
        if line.listening is not None:
            report(Listening(what=what, **asdict(line.listening)))

    child = Worker(loop, argv, StageLine, on_line, then, at_once=peer_group is not None)
    if peer_group is not None:
        child.feed(peer_group.token.hex().encode())
    return child


# The child that loads the image (`python -m containers.images`).


class Loaded(Value, frozen=True, kw_only=True):
    """The image as it is on this node: its id, what the engine is given to start it, and how long the load took."""

    image_id: str
    start: str
    seconds: float


class LoadLine(WorkLine[Loaded], frozen=True, kw_only=True):
    """A line of `python -m containers.images`."""

    failure: ClassVar[Problem] = ("ContainerError", "the load of the image")
    wants: int | None = None
    """The bytes of the archive that it needs here."""
    image_id: str | None = None
    start: str | None = None
    seconds: float | None = None
    error: Problem | None = None

    def answer(self) -> tuple[Loaded | None, Problem | None]:
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
        report: Callable[[Progress | Waiting], None],
        wants: Callable[[], None],
        then: Callable[[Loaded | None, Problem | None], None],
        limit_s: float = limits.IMAGE_LOAD_S,
    ) -> None:
        self._report, self._wants, self._limit_s = report, wants, limit_s
        self._limited_from: float | None = None
        self._needed = 0
        """The bytes of the archive."""
        super().__init__(loop, argv, LoadLine, self._hear, then)
        self._limit()

    def _limit(self) -> None:
        """Let the time begin; none is counted while it waits for the archive."""
        since = self._limited_from = time.monotonic()
        self.loop.after(self._limit_s, lambda: self._end(since))

    def _end(self, since: float) -> None:
        if self.is_open and self._limited_from == since:
            self.give_up(("ContainerError", f"the image was not here after {format_duration(self._limit_s)}; its load was ended"))

    def bring(self, archive: str) -> None:
        self._report(Progress(what="image", done=self._needed, total=self._needed))
        self._limit()
        self.send(archive=archive)

    def _hear(self, line: LoadLine) -> None:
        report_progress(self._report, "image", line)
        if line.wants is not None:
            self._limited_from, self._needed = None, line.wants
            self._report(Progress(what="image", done=0, total=self._needed))
            self._wants()
