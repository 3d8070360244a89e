"""Have the engine start the ranks of a run on one node, watch them by their events and output, and shut all down as a whole."""

import ipaddress
import logging
import os
import re
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from base import system, untrusted
from base.errors import NodeLost, SlipwayError
from base.logs import masked, printable
from base.process import last_lines
from cluster import machine, processes
from containers import engines, spec
from workflow.run.link.event_loop import Call, Loop, Timer
from workflow.run.node import limits, window_watch
from workflow.run.record import events
from workflow.run.record.outcome import FROZEN, RankEnd, RankState, first_failed

logger = logging.getLogger(__name__)

# Watching one rank by its events: its phase, the pace of its steps, its last line.


READ_BYTES = 4 << 20
PARSE_LINES = 200
RECENT_STEPS = 50
STEPS_IN_LIMIT = 20
_NOT_FINITE = re.compile(rb'"loss": *(?:NaN|-?Infinity)')
OUTPUT = "output"
"""The phase of a program whose events an adapter writes, from its start to its end."""


class EventTail:
    """The events file of one rank, read as it grows. Times are those of the monotonic clock, given by the caller; `clock` tells when a
    look was done, else it takes no time."""

    def __init__(self, path: Path, now: float, clock: Callable[[], float] | None = None) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._lines: list[window_watch.Line] = []
        """Lines with steps or a time, as far as the look that is under way has read them."""
        self._now = clock
        self._all_before = now
        """What has come since was written after this."""
        self.window = window_watch.WindowWatch(now)
        self.last = now
        self.phase: str | None = None
        self.step: int | None = None
        self.tokens: int | None = None
        """The tokens of the last step."""
        self.error: events.ErrorEvent | None = None
        self.checkpoint: int | None = None
        """The step of the last checkpoint that a run can resume from."""
        self.problem: str | None = None
        """The reason why the events cannot be read."""
        self.stopped = False
        """True after the event run_stop."""
        self.broken_lines = 0

    def poll(self, now: float) -> None:
        """Read the lines written since the last poll. Every line counts as a sign of life."""
        data = self._read()
        by = now if self._now is None else self._now()
        self._lines = []
        self._take_all(data or b"", now)
        for line in self._lines:
            self.window.take(line, self._all_before, by)
        if data is not None and len(data) < READ_BYTES:
            self._all_before = now

    def _take_all(self, data: bytes, now: float) -> None:
        if not data:
            return
        self._offset += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= events.MAX_LINE else rest[: events.MAX_LINE + 1]  # too long for an event, whatever follows
        if lines:
            self.last = now
        many = len(lines) > PARSE_LINES
        for index, line in enumerate(lines):
            if many and RECENT_STEPS <= index < len(lines) - RECENT_STEPS and b'"seconds"' in line and not _NOT_FINITE.search(line):
                continue  # one of very many steps: the first and the last ones tell enough
            event = events.checked_event(events.parse_line(line))
            self.broken_lines += event is None
            if event is not None:
                self._take(event)

    def _read(self) -> bytes | None:
        """Return what has been added, empty without a file, None if it cannot be read: that is reported once and counts as silence."""
        try:
            descriptor = untrusted.open_file(self._path)
            try:
                return os.pread(descriptor, READ_BYTES, self._offset)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return b""
        except OSError as error:
            if self.problem is None:
                self.problem = f"{self._path.name} cannot be read: {error.strerror}"
                logger.error("%s", self.problem)
            return None

    def _take(self, event: events.Event) -> None:
        match event:
            case events.Step():
                count = max(1, event.steps or 1)
                seconds = event.seconds * count
                self._seconds.append(seconds)
                self.step = event.step
                if self.error is None and event.is_diverged:
                    self.error = events.ErrorEvent("nan", f"the loss of step {event.step} is {event.loss}")
                self.tokens = event.tokens
                self._lines.append(window_watch.Line(event.step, event.monotonic_ns, seconds, event.measured, event.step - count + 1))
            case events.PhaseEvent():
                self.phase = event.phase
                self._lines.append(window_watch.Line(None, event.monotonic_ns))
            case events.ErrorEvent():
                self.error = self.error or event
            case events.CheckpointEvent(resumable=True):
                self.checkpoint = event.step
            case events.RunStop():
                self.stopped = True

    def limit_s(self, beat_s: float, init_s: float) -> float:
        """Return how long this rank may be silent now: in train max(beat_s, 20 median steps), else `init_s`. A program that writes no
        events does not say when it evaluates or saves: in the phase output max(init_s, 20 median lines)."""
        if self.phase not in ("train", OUTPUT) or self.stopped:
            return init_s
        if not self._seconds:
            return max(beat_s, init_s)
        middle = sorted(self._seconds)[len(self._seconds) // 2]
        return max(beat_s if self.phase == "train" else init_s, STEPS_IN_LIMIT * middle)

    def next_look_s(self, now: float) -> float:
        return self.window.next_look_s(now, self.step is not None)

    def silent_s(self, now: float) -> float:
        return now - self.last


# The output of a process, kept within bounds: the beginning and the end of a flood, and the last lines for messages.


_EPILOGUE = re.compile(r"^[EWI][0-9]{4} [0-9:.]+ [^\n]*torch/distributed/elastic/", re.MULTILINE)
"""What torchrun adds once a rank has failed hides what the rank said of it."""


MAX_BYTES = 64 << 20
RECENT_BYTES = 1 << 16
LAST_LINES = 20
LAST_BYTES = 4000


class RankLog:
    """A log of at most `max_bytes`. Of what follows, the last RECENT_BYTES stand at the end."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._room = max_bytes
        self._beyond = 0
        self._recent = b""
        self.problem: str | None = None
        """Why nothing is written any more: a full disk must not hide what the process says of it."""

    def write(self, data: bytes) -> None:
        self._recent = (self._recent + data)[-RECENT_BYTES:]
        fits = data[: self._room]
        self._room -= len(fits)
        self._beyond += len(data) - len(fits)
        self._append(fits)

    def _append(self, data: bytes) -> None:
        try:
            if data and self.problem is None:
                self._file.write(data)
        except OSError as error:
            self.problem = error.strerror or str(error)
            logger.error("%s cannot be written on: %s", self._path, self.problem)

    def recent(self) -> str:
        """Return the last output unchanged."""
        return self._recent.decode(errors="replace")

    def last_lines(self) -> str:
        """Return the last lines, printable and with secrets masked."""
        said = self.recent()
        text = printable(masked(_EPILOGUE.split(said)[0] or said))
        return last_lines(text, LAST_LINES)[-LAST_BYTES:]

    def close(self) -> None:
        """Append the end of a flood, and close the log."""
        tail = self._recent[-self._beyond :] if self._beyond else b""
        if self._beyond > len(tail):
            self._append(f"\n... {self._beyond - len(tail)} bytes left out here ...\n".encode())
        self._append(tail)
        self._file.close()


class Watched:
    """One started process with its log and the events of its ranks."""

    def __init__(self, process: engines.Process, out: Path, logs: Path, host: str) -> None:
        now = time.monotonic()
        self.process = process
        self.host = host
        self._out = out
        self.log = RankLog(logs / f"{process.plan.name}.log")
        self.beats = {rank: EventTail(out / f"events-{rank}.jsonl", now, time.monotonic) for rank in process.plan.ranks}
        self.ended = False

    def read_output(self) -> bool:
        """Read the output that has come. Return False at the end of the stream."""
        try:
            data = os.read(self.process.output_fd, 1 << 18)
        except BlockingIOError:
            return True
        self.log.write(data)
        return bool(data)

    def drain(self) -> None:
        """Read all that is left in the pipe now, since descendants may hold it open for ever."""
        for _ in range(256):
            try:
                data = os.read(self.process.output_fd, 1 << 18)
            except (BlockingIOError, OSError):
                return
            if not data:
                return
            self.log.write(data)

    def end(self, oom_kill: bool) -> RankEnd:
        self.drain()
        now = time.monotonic()
        for beats in self.beats.values():
            beats.poll(now)
        errors = {rank: beats.error for rank, beats in self.beats.items() if beats.error is not None}
        plan, code, failed = self.process.plan, self.process.exit_code(), next(iter(errors), None)
        if plan.launcher is not None and code:
            failed, code = first_failed(code, self.log.recent(), plan.ranks, errors)
        error = events.ErrorEvent() if failed is None else errors.get(failed, events.ErrorEvent())
        if code and error.kind in (None, "error") and (full := self._words_of_full_disk()) is not None:
            error = error._replace(kind="storage", message=error.message or full)
        odd = {rank: problem for rank, beats in self.beats.items() if not code and (problem := beats.window.problem()) is not None}
        return RankEnd(
            ranks=plan.ranks,
            host=self.host,
            exit_code=code,
            time=error.time or time.time(),
            error_kind=error.kind,
            error_message=error.message or None,
            oom_kill=oom_kill,
            run_stop=all(beats.stopped for beats in self.beats.values()),
            last_step=max((beats.step for beats in self.beats.values() if beats.step is not None), default=None),
            broken_lines=sum(beats.broken_lines for beats in self.beats.values()),
            last_lines=self.log.last_lines(),
            failed_rank=next(iter(odd), None) if failed is None else failed,
            checkpoint=next((beats.checkpoint for beats in self.beats.values() if beats.checkpoint is not None), None),
            wrong_clock=next(iter(odd.values()), None),
            windows=tuple(
                seen for rank, beats in self.beats.items() if not code and (seen := beats.window.seen(rank, time.monotonic())) is not None
            ),
            sidecar=plan.sidecar,
            may_end=plan.may_end,
            launcher=plan.launcher if code and failed is None else None,
        )

    def _words_of_full_disk(self) -> str | None:
        """Return the program's last line about a full disk, or None if the disk of the node's cache is not full."""
        from data_prep.free_space import is_full

        said = [line for line in self.log.last_lines().splitlines() if any(words in line for words in system.FULL_WORDS)]
        return said[-1] if said and self._out.is_dir() and is_full(self._out, 0) else None

    def is_overdue(self, now: float, beat_s: float, init_s: float) -> bool:
        return any(beats.silent_s(now) > beats.limit_s(beat_s, init_s) for beats in self.beats.values())

    def states(self, now: float, beat_s: float, init_s: float) -> list[RankState]:
        return [
            RankState(
                rank=rank,
                host=self.host,
                phase=beats.phase,
                step=beats.step,
                silent_s=round(beats.silent_s(now), 3),
                limit_s=round(beats.limit_s(beat_s, init_s), 3),
                state=state_of_rank(self.process, rank),
                last_lines=self.log.last_lines(),
            )
            for rank, beats in self.beats.items()
        ]


def state_of_rank(process: engines.Process, rank: int) -> str:
    """Return the state letter of /proc, or `T` if a descendant is stopped. Reads the states of all processes of this machine."""
    everybody = {state.pid: state for state in processes.all_processes()} if process.pid else {}
    below = processes.descendants(process.pid, everybody.values())
    if process.plan.launcher is not None:
        own = set(processes.tagged("RANK", str(rank).__eq__)).intersection(below)
        found = next((pid for pid in below if pid in own), None)
        below = [] if found is None else processes.descendants(found, everybody.values())
    else:
        found = process.pid
    states = [everybody[pid].state for pid in (process.pid if found is None else found, *below) if pid in everybody]
    return next((state for state in states if state in FROZEN), next(iter(states), "?"))


class Ranks:
    """All processes of a plan. `on_exit(RankEnd)` is called in the loop for each that ends, also during `stop`; `on_failure(error)` for
    each that is over because its container failed."""

    def __init__(
        self,
        loop: Loop,
        engine: engines.Engine,
        plan: spec.EnginePlan,
        on_exit: Callable[[RankEnd], None],
        on_failure: Callable[[SlipwayError], None],
    ) -> None:
        self._loop = loop
        self._engine = engine
        self.plan = plan
        self._on_exit, self._on_failure = on_exit, on_failure
        self._oom_before = machine.oom_kills()
        self.watched: list[Watched] = []

    def start(self, out: Path, logs: Path, host: str) -> None:
        """Start every process. `out`: where they write; `logs`: where we write what they print. Raises ContainerError; those started before
        it are still to be stopped."""
        for index in range(len(self.plan.processes)):
            watched = Watched(self._engine.start(self.plan, index), out, logs, host)
            self.watched.append(watched)
            self._loop.watch(watched.process.output_fd, partial(self._readable, watched))
            self._loop.watch(watched.process.exit_fd, self._look_for_ends)

    def _readable(self, watched: Watched) -> None:
        if not watched.read_output():
            self._loop.unwatch(watched.process.output_fd)

    def _look_for_ends(self) -> None:
        for watched in self.running():
            self._exited(watched)

    def _exited(self, watched: Watched) -> None:
        failure = None
        try:
            if watched.process.exit_code() is None:
                return
        except SlipwayError as error:
            failure = error
        watched.ended = True
        if all(other.process.exit_fd != watched.process.exit_fd for other in self.running()):
            self._loop.unwatch(watched.process.exit_fd)
        if failure is not None:
            watched.drain()
            self._on_failure(failure)
        else:
            self._on_exit(watched.end(watched.process.oom_kill or self._oom_count_rose()))

    def _oom_count_rose(self) -> bool:
        now = machine.oom_kills()
        return now is not None and self._oom_before is not None and now > self._oom_before

    def poll(self, now: float) -> None:
        for watched in self.running():
            self._exited(watched)
            for beats in watched.beats.values():
                beats.poll(now)

    def look(self, now: float) -> float | None:
        """Read the events that have come, between two times of `poll`; in how many seconds it should be done again, None: not at all."""
        files = [beats for watched in self.running() for beats in watched.beats.values()]
        for file in files:
            file.poll(now)
        growing = [file for file in files if not file.stopped]
        telling = [file for file in growing if file.phase is not None or file.step is not None] or growing
        return min((file.next_look_s(now) for file in telling), default=None)

    def running(self) -> list[Watched]:
        return [watched for watched in self.watched if not watched.ended]

    def rank_runs(self) -> bool:
        """Return True if any process of ranks still runs. Sidecars do not count."""
        return any(watched.process.plan.ranks for watched in self.running())

    def states(self, now: float, beat_s: float, init_s: float) -> list[RankState]:
        return [state for watched in self.running() for state in watched.states(now, beat_s, init_s)]

    def is_overdue(self, now: float, beat_s: float, init_s: float) -> bool:
        return any(watched.is_overdue(now, beat_s, init_s) for watched in self.running())

    def least_step(self) -> int | None:
        steps = [beats.step for watched in self.watched for beats in watched.beats.values()]
        return min((step for step in steps if step is not None), default=None)

    def tokens(self) -> int | None:
        """Sum the tokens of the last step over all ranks of this node. Return None if a rank reports none."""
        told = [beats.tokens for watched in self.watched for beats in watched.beats.values()]
        known = [tokens for tokens in told if tokens is not None]
        return sum(known) if known and len(known) == len(told) else None

    def gpus_seen(self) -> tuple[str, ...] | None:
        """Return the UUIDs of the GPUs that the container lists, or None if they were not queried."""
        return next((watched.process.gpus_seen for watched in self.watched if watched.process.gpus_seen is not None), None)

    def signal(self, number: int) -> None:
        """Send the signal to every running process, with CONT, since a stopped process handles only KILL."""
        for watched in self.running():
            watched.process.signal(number)
            if number != signal.SIGKILL:
                watched.process.signal(signal.SIGCONT)

    def close(self) -> None:
        """Finish the logs and close the descriptors after all processes have ended. The container is removed separately."""
        for watched in self.watched:
            watched.drain()
            self._loop.unwatch(watched.process.output_fd)
            self._loop.unwatch(watched.process.exit_fd)
            watched.log.close()
            watched.process.close()
        self._engine.close(self.plan)
        self.watched = []

    def remove(self, then: Callable[[Call], None]) -> bool:
        """Remove the container in a child, since the daemon may be slow. Return False if this engine makes none."""
        made = self.plan.container is not None and bool(self.plan.container.find)
        if made:
            Call(self._loop, "removal of the container", self._engine.remove, self.plan, timeout_s=limits.CONTAINER_REMOVAL_S).then(then)
        return made


# Rendezvous ports, bound on their node before anybody is told of them. MASTER_PORT is on the head node, the port of a rank on its own.
#
# The kernel chooses the ports at random. A port is bound without SO_REUSEADDR, which keeps everybody else from it, and gets the option
# afterwards: then a server that sets it too, as torch's store does, may listen there while we still hold it, until the first step.


class Reservation:
    """The bound ports of an attempt. `release()` once the ranks use them. Raises NodeLost."""

    def __init__(self, address: str, count: int = 1) -> None:
        self._sockets = [_bind(address) for _ in range(count)]
        self.ports: tuple[int, ...] = tuple(holder.getsockname()[1] for holder in self._sockets)

    def release(self) -> None:
        for holder in self._sockets:
            holder.close()


def _bind(address: str) -> socket.socket:
    """Hold a free port. Raises NodeLost."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        found = f"found {address!r}: a name may mean another machine elsewhere"
        raise NodeLost(f"the rendezvous needs an IP address of the node, {found}") from None
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.bind((address, 0))
    except OSError as error:
        holder.close()
        raise NodeLost(f"no free port on {address} for the rendezvous ({error.strerror}); is it an address of this node?") from error
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


# Shutdown of the ranks on a node: TERM, after 5 s KILL, then what the engine made, then all descendants of this process. It takes at most
# 10 s if the engine answers at once.


class Shutdown:
    """The end of the ranks (None: there are none), then of every descendant of this process; `then(clean)` once, in the loop or at once."""

    def __init__(self, loop: Loop, ranks: Ranks | None, then: Callable[[bool], None]) -> None:
        self._ranks = ranks
        self._then: list[Callable[[bool], None]] = [then]
        self._timers: list[Timer] = []
        self._closing = False
        if ranks is None or not ranks.running():
            self._finish()
            return
        self._timers = [loop.after(limits.RANKS_TERM_S, self._kill), loop.after(limits.RANKS_END_S, self._finish)]
        ranks.signal(signal.SIGTERM)

    def also(self, then: Callable[[bool], None]) -> None:
        """Add a function that is called at the end."""
        self._then.append(then)

    @property
    def finished(self) -> bool:
        return not self._then

    def _kill(self) -> None:
        if self._ranks is not None:
            self._ranks.signal(signal.SIGKILL)

    def rank_ended(self) -> None:
        if not self._closing and (self._ranks is None or not self._ranks.running()):
            self._finish()

    def _finish(self) -> None:
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        closed = self._ranks is None or self._close(self._ranks)
        if self._ranks is None or not self._ranks.remove(partial(self._removed, closed)):
            self._end_descendants(closed)

    def _removed(self, closed: bool, removal: Call) -> None:
        """Continue with the descendants: the engine's clients are among them and have ended now."""
        try:
            removal.result()
        except SlipwayError as error:
            logger.error("%s", error)
            self._end_descendants(False)
        else:
            self._end_descendants(closed)

    def _end_descendants(self, removed: bool) -> None:
        ended = processes.kill_descendants(limits.DESCENDANTS_END_S)
        if not ended:
            logger.error(processes.STUCK)
        clean = ended and removed
        waiting, self._then = self._then, []
        for then in waiting:
            then(clean)

    def _close(self, ranks: Ranks) -> bool:
        try:
            ranks.close()
        except OSError as error:
            logger.error("%s", error)
            return False
        return True
