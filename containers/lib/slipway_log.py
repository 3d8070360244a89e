"""Start a program that writes no events, and write them for it: of the steps that it tells in what it prints, or of none.

    python3 slipway_log.py COMMAND ...

SLIPWAY_EVENTS is a JSON object: `step`, the expression that its lines are searched for, `every` and `ranks`, or `none` instead of them.
What the program prints goes on as it comes, before it is looked at; its end is ours. Python 3.6, standard library only.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

import slipway_events
import slipway_steps  # type: ignore[import-not-found]

ALIVE_S = 5.0
"""How often the program's output, or its life where nobody looks at that, is told as a beat."""
READ_BYTES = 1 << 18
DRAIN_READS = 64
SET_PIPE_SIZE = 1031
PIPE_BYTES = 1 << 20
DEATH_SIGNAL = 1
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NAN_EXIT = 42
STORAGE_EXIT = 44
USAGE_EXIT = 2
NOT_STARTED = "%s cannot be started: %s: the image must have it, or without an image every node, and anybody may execute it there"


class Adapter:
    """One rank's program, from its start to its end. `steps`: None where its output is not looked at, and goes where ours does."""

    def __init__(self, events: slipway_events.EventFile, steps: Optional[slipway_steps.Steps], started: float) -> None:
        self.events = events
        self.steps = steps
        self.started = started
        self.beat = started
        self.rest, self.rest_at = b"", started
        self.is_nan = False
        self.child: Any = None

    def emit(self, event: str, **fields: Any) -> None:
        self.beat = time.monotonic()
        self.events.emit(event, **fields)

    def start(self, command: List[str]) -> int:
        """Begin the program, and hear of its end and of signals; the descriptor that wakes us up."""
        wake, waker = os.pipe()
        for end in (wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker)
        for number in (signal.SIGCHLD,) + ENDS:
            signal.signal(number, self.pass_on)
        pipes = {} if self.steps is None else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.child = subprocess.Popen(command, preexec_fn=die_with_parent(os.getpid()), **pipes)  # type: ignore[call-overload]
        return wake

    def run(self, command: List[str]) -> int:
        wake = self.start(command)
        output = None if self.child.stdout is None else self.child.stdout.fileno()
        if output is not None:
            with contextlib.suppress(OSError):  # as wide as the machine allows, so that the program need not wait while it is read
                fcntl.fcntl(output, SET_PIPE_SIZE, PIPE_BYTES)
            os.set_blocking(output, False)
        while self.child.poll() is None:
            readable = select.select([wake] + ([] if output is None else [output]), [], [], ALIVE_S)[0]
            if wake in readable:
                os.read(wake, 4096)
            if output is not None and output in readable and self.read(output) == b"":
                output = None
            self.every_while()
        for _ in range(DRAIN_READS):  # a process that it left behind may hold the pipe open, and write for ever
            if output is None or not self.read(output):
                break
        self.look(self.rest, self.rest_at)
        return int(self.child.returncode)

    def every_while(self) -> None:
        """Beat while the program lives, where its output is not read; TERM may not be enough to end it."""
        if time.monotonic() - self.beat >= ALIVE_S:
            if self.is_nan:
                self.child.kill()
            elif self.steps is None:
                self.emit("alive")

    def pass_on(self, number: int, frame: Any) -> None:  # noqa: ARG002 - as signal() calls it
        if number in ENDS and self.child is not None:
            self.child.send_signal(number)

    def read(self, output: int) -> Optional[bytes]:
        """Pass on what the program has printed, then look at it; None where nothing is there now, nothing where nothing will come."""
        try:
            came = os.read(output, READ_BYTES)
        except BlockingIOError:
            return None
        now = time.monotonic()
        left = memoryview(came)
        while left:
            left = left[os.write(1, left) :]
        if came[:1] in (b"\r", b"\n"):  # a progress bar ends a line when it begins the next one: the line is as old as its text
            self.look(self.rest, self.rest_at)
            self.rest = b""
        data = self.rest + came
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self.rest, self.rest_at = data[end : end + slipway_steps.MAX_LINE], now
        self.look(data[:end], now)
        if came and not self.is_nan and now - self.beat >= ALIVE_S:
            self.emit("alive")
        return came

    def look(self, data: bytes, now: float) -> None:
        if self.steps is None or self.is_nan or not data.strip():
            return
        event = self.steps.take(data.decode("utf-8", "replace").replace("\r", "\n").split("\n"), now)
        if event is None:
            return
        loss = event.get("loss")
        if loss is not None and not math.isfinite(loss):
            self.is_nan = True
            self.emit("error", kind="nan", message="the loss of step %d is %r" % (event["step"], loss))
            self.child.terminate()
            return
        self.emit("step", monotonic_ns=int(now * 1e9), **event)

    def finish(self, code: int) -> int:
        if self.is_nan:
            return NAN_EXIT
        for sentence in [] if self.steps is None else self.steps.warnings():
            self.emit("warning", message=sentence)
        if code == 0:
            self.emit("run_stop", train_s=time.monotonic() - self.started)
        return code


def die_with_parent(parent: int) -> Any:
    """Return the function that the child calls before it becomes the program; None where the interpreter cannot."""
    try:
        import ctypes
    except ImportError:
        return None
    library = ctypes.CDLL(None)

    def ask() -> None:
        library.prctl(DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def main(command: List[str]) -> int:
    settings: Dict[str, Any] = json.loads(os.environ["SLIPWAY_EVENTS"])
    rank = int(slipway_events.first_of(slipway_events.RANK_VARIABLES) or 0)
    world_size = int(slipway_events.first_of(slipway_events.WORLD_VARIABLES) or 1)
    with open(os.environ["SLIPWAY_CELL"]) as file:
        cell = json.load(file)
    events = slipway_events.EventFile(os.environ["SLIPWAY_OUT"], rank)
    is_read = "step" in settings and (rank == 0 or settings.get("ranks") == "all")
    started = time.monotonic()
    adapter = Adapter(events, None, started)
    try:
        if is_read:
            adapter.steps = slipway_steps.Steps(settings, cell["steps"], started)
        drives = {"drives_all": True} if os.environ.get(slipway_events.DRIVES_ALL) else {}
        about = {"steps_source": "log" if is_read else "none", "counts_lines": adapter.steps is not None and adapter.steps.counts_lines}
        adapter.emit("run_start", rank=rank, world_size=world_size, hostname=os.uname().nodename, **dict(drives, **about))
        adapter.emit("phase", phase="output")
        return adapter.finish(adapter.run(command))
    except re.error as error:
        adapter.emit("error", kind="error", message="the interpreter %s takes no such expression: %s" % (sys.version.split()[0], error))
        return USAGE_EXIT
    except OSError as error:
        if adapter.child is None:
            adapter.emit("error", kind="error", message=NOT_STARTED % (command[0], error.strerror))
            return USAGE_EXIT
        adapter.child.kill()
        sys.stderr.write("%s cannot be written: %s\n" % (error.filename or "the program's output, or its events,", error.strerror))
        return STORAGE_EXIT


def end_as(code: int) -> None:
    """End as the program did, by a signal too, without a second core file."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    end_as(main(sys.argv[1:]))
