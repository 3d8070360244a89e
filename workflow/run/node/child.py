"""Start programs of ours as children of the node program, which exchange lines of JSON with it and which it never waits for."""

import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from base.process import dies_with_us, end_child
from base.sanitize import text
from cluster.processes import boot_id, pid_namespace, wait_for_ends
from workflow.run.link.event_loop import Loop
from workflow.run.link.reports import StagedCopy, Value
from workflow.run.node import limits
from workflow.run.record.events import parse_line

READ_BYTES: Final = 1 << 18
T = TypeVar("T")
R = TypeVar("R")
Problem = tuple[str, str]
"""The name of a class of base/errors.py, and a message."""


class Child(Generic[T]):
    """A running child, in a session of its own. In the loop: `heard(line)` for each line, made a `kind` by msgspec, and `ended(well, how)`
    once, `how` being the end of a sentence about it. One that says an object which is no `kind` is ended for that; lines that are no
    objects are passed over, since libraries talk too. Raises OSError where it cannot be started."""

    def __init__(self, loop: Loop, argv: Sequence[str], kind: Any, heard: Callable[[T], None], ended: Callable[[bool, str], None]) -> None:
        self.loop, self._kind, self._heard, self._ended = loop, kind, heard, ended
        self._rest, self._unwritten = b"", bytearray()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # with a client that it feeds, it is ended as one
            preexec_fn=dies_with_us(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        loop.watch(self._output, self._readable)

    @property
    def is_open(self) -> bool:
        """Return True if more lines may come."""
        return not self._output.closed

    def send(self, **words: Any) -> None:
        self.feed(json.dumps(words, separators=(",", ":")).encode())

    def feed(self, line: bytes) -> None:
        """Say a line to it; what does not fit into the pipe is written later. One that reads no more is left alone: its end tells why."""
        if not self._input.closed:
            self._unwritten += line + b"\n"
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._input.fileno(), self._unwritten)]
        except BlockingIOError:
            self.loop.watch(self._input, self._flush, self._flush)
            return
        except OSError:
            self._unwritten.clear()
        self.loop.unwatch(self._input)

    def hang_up(self) -> None:
        """Close its input: it ends by itself."""
        if not self._input.closed:
            self.loop.unwatch(self._input)
            self._input.close()

    def _readable(self) -> None:
        try:
            data = os.read(self._output.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            value = parse_line(line)
            if self.is_open and isinstance(value, dict):
                self._take(value)
        if not data and self.is_open:
            self._close()
            code = self._process.wait()
            self._ended(code == 0, f"ended with {code} and without an answer")

    def _take(self, value: dict[str, object]) -> None:
        try:
            line = msgspec.convert(value, self._kind)
        except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
            self.kill()
            self._ended(False, f"said {text(value, 200)}, which is none of its lines ({text(str(error), 200)}), and was ended")
        else:
            self._heard(line)

    def _close(self) -> None:
        self.loop.unwatch(self._output)
        self._output.close()
        self.hang_up()

    def kill(self) -> None:
        """End it now, with what it has started; nothing is called any more."""
        if self.is_open:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._close()
            end_child(self._process)


class Address(Value, frozen=True, kw_only=True):
    """The address at which a stager listens for those of the other nodes, and the chunks that it has: see data_prep/staging/exchange.py."""

    address: str
    port: int
    have: str


class WorkLine(Value, Generic[R], frozen=True, kw_only=True):
    """A line of a child that has one thing to do."""

    progress: tuple[int, int] | None = None
    """Bytes done, and in all."""
    waiting: bool = False
    """True while another process of this machine does the same work."""
    listening: Address | None = None
    wants: int | None = None
    """The bytes of a file that it needs here."""
    result: R | None = None
    error: Problem | None = None


class Worker(Child[WorkLine[R]]):
    """A child that has one thing to do: `on_line(line)` for each line, `then(result, problem)` once, one of them None; not after `kill`.
    The result counts when the child has ended well, or `at_once` where it goes on to be of use to others."""

    kind: ClassVar[Any]
    """The type of its lines."""
    failure: ClassVar[Problem]
    """What an end without an answer is, and whose end it is."""

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        on_line: Callable[[WorkLine[R]], None],
        then: Callable[[R | None, Problem | None], None],
        at_once: bool = False,
    ) -> None:
        self._on_line, self._then, self._at_once = on_line, then, at_once
        self._result: R | None = None
        self._problem: Problem | None = None
        self._is_over = False
        super().__init__(loop, argv, self.kind, self._note, self._finish)

    def _note(self, line: WorkLine[R]) -> None:
        self._on_line(line)
        self._result, self._problem = line.result or self._result, line.error or self._problem
        if self._at_once and line.result is not None:
            self._answer(line.result, None)

    def _finish(self, well: bool, how: str) -> None:
        name, whose = self.failure
        if well and self._result is not None:
            self._answer(self._result, None)
        else:
            self._answer(None, self._problem or (name, f"{whose} {how}; its words are in the run's log"))

    def _answer(self, result: R | None, problem: Problem | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._then(result, problem)


class Stager(Worker[StagedCopy]):
    """A stager (`python -m data_prep.staging`). In a group of nodes it goes on passing chunks to others after its result. A copy that is
    killed is resumed by the next one."""

    kind = WorkLine[StagedCopy]
    failure = ("StagingError", "the staging process")


class Loaded(Value, frozen=True, kw_only=True):
    """The image as it is on this node: its id, what the engine is given to start it, and how long the load took."""

    image_id: str
    start: str
    seconds: float


class ImageLoad(Worker[Loaded]):
    """A load of an image (`python -m containers.images`). What the engine has got when this is killed, it drops by itself."""

    kind = WorkLine[Loaded]
    failure = ("ContainerError", "the load of the image")


# The child that watches the machine (`python -m cluster.load`). It keeps its lines in memory until the end, so that no disk is used
# while the run measures.


logger = logging.getLogger(__name__)

SUPERVISOR: Final = "SLIPWAY_SUPERVISOR"
"""Environment variable of a node program: which process of which machine started it, as `process_identity` tells."""
MAX_BYTES: Final = 16 << 20


def process_identity() -> str:
    """Describe this process so that another one of the same machine can find it."""
    return f"{os.getpid()} {boot_id()} {pid_namespace()}"


def pid_here(who: str) -> int | None:
    """Return the pid of the process that `process_identity` described, None if that was on another machine."""
    pid, _, where = who.partition(" ")
    return int(pid) if where == f"{boot_id()} {pid_namespace()}" and pid.isdecimal() else None


def watching_argv(python: str, cores: Collection[int], mark: str, ours: Sequence[int], gpus: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of a watcher of the machine, or of these GPUs."""
    argv: tuple[str, ...] = (python, "-P", "-m", "cluster.load", "--cores", ",".join(map(str, sorted(cores))), "--mark", mark)
    argv += ("--ours", ",".join(map(str, ours))) if ours else ()
    return (*argv, "--gpus", ",".join(gpus)) if gpus else argv


class Watcher:
    """One or more watchers that write to the same place; where one cannot be started there is less to know."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._lines = os.memfd_create("load", os.MFD_CLOEXEC)
        self._children: list[subprocess.Popen[bytes]] = []
        for argv in commands:
            try:
                self._children.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._lines, preexec_fn=dies_with_us()))
            except (OSError, subprocess.SubprocessError) as error:
                logger.warning("this machine is not watched: %s", error)

    def finish(self) -> None:
        for child in self._children:
            child.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Give them a moment for that, then end them. One that hangs in the kernel is left to the end of all descendants."""
        self.finish()
        wait_for_ends([child.pid for child in self._children if child.poll() is None], limits.WATCHER_END_S)
        for child in self._children:
            if child.poll() is None:
                child.kill()

    def lines(self) -> bytes:
        return os.pread(self._lines, MAX_BYTES, 0)
