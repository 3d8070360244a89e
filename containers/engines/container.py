"""A container that runs: its client in the foreground, its watchdog at the other end of a socket, its ranks by their pipes.

Nothing here waits: the descriptors are watched by the node program's event loop, and what they bring is handled in `exit_code`. When the
ranks are told to end (shutdown), that goes to the watchdog; what the engine must do is done in `remove`, within limits.
"""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import Final

from base.errors import AllocationError, ContainerError, SlipwayError, TrainingFailed
from base.foreign import text
from base.typed import json_as
from cluster.gpus.comparing import compare, listed_uuids
from containers.engines import client, watchdog_socket
from containers.engines.oom import OomCount
from containers.engines.words import End, Listed, Words
from containers.limits import CLIENT_END_S, CONTAINER_REMOVE_S, KILLED_CLIENT_S
from containers.spec import EnginePlan, ProcessPlan

LOG: Final = "engine.log"
SHOWN: Final = " (`slipway plan --cell` shows its command)"
"""Of a container of a study."""
ENDING_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
BY_WATCHDOG: Final = (-signal.SIGTERM, -signal.SIGKILL)

MOST_WOKEN: Final = 64
"""Processes that hear of their container's matters at once. The kernel lets 100 nested epolls wait for one descriptor; the others of a node
with more are asked at every look at the ranks."""

_RUNNING: Final[dict[str, Container]] = {}
"""By name: the processes of a plan are started one after the other, and are in one container."""


def start(plan: EnginePlan, index: int) -> ContainerProcess:
    """One process of the plan, in the container that the first of them brings up. Raises ContainerError."""
    name = plan.spec.name
    if name not in _RUNNING:
        _RUNNING[name] = Container(plan)
    return _RUNNING[name].processes[index]


def close(plan: EnginePlan) -> None:
    """Let go of the container: its watchdog ends what still runs in it, its client is given CLIENT_END_S; may be called again."""
    container = _RUNNING.pop(plan.spec.name, None)
    if container is not None:
        container.close()


def remove(plan: EnginePlan) -> None:
    """See to it that nothing is left; may be called again. Raises ContainerError naming what cannot be removed within
    CONTAINER_REMOVE_S."""
    close(plan)
    control = plan.container
    assert control is not None
    if control.find:
        client.remove_container(plan.spec.name, control.find, control.remove, control.where, CONTAINER_REMOVE_S)


class Container:
    """From the start of the client to the end of both. `failure`: why the container, not a program in it, has failed."""

    def __init__(self, plan: EnginePlan) -> None:
        control = plan.container
        assert control is not None
        self.plan, self._control = plan, control
        self._directory = Path(plan.spec.paths.control)
        self.failure: SlipwayError | None = None
        self.gpus_seen: tuple[str, ...] | None = None
        self.ended_because: str | None = None
        """Why its watchdog ends all that is in it, where that was not our order."""
        self._link: watchdog_socket.Link | None = None
        self._given = self._started = self._unwanted = self._client_waited_for = False
        self._memory: OomCount | None = None
        user = plan.spec.user
        by_daemon = bool(control.find)  # whatever has none runs as we do
        owner = (user.uid, user.gid) if by_daemon and user is not None and os.geteuid() == 0 != user.uid else None
        watchdog_socket.prepare(self._directory, control.files, owner)
        self._listener = watchdog_socket.listen(self._directory, owner)
        self._start_by = time.monotonic() + control.start_s
        try:
            with (self._directory / LOG).open("wb") as log:
                self._client = client.spawn(control.run, log, client.environment(control.hidden))
        except ContainerError:
            self._listener.close()
            raise
        self._client_fd = os.pidfd_open(self._client.pid)
        self.events = select.epoll()
        for descriptor in (self._listener.fileno(), self._client_fd):
            self.events.register(descriptor, select.EPOLLIN)
        self.processes = [ContainerProcess(self, index, process) for index, process in enumerate(plan.processes)]

    # -- in the loop

    def pump(self) -> None:
        """Take up what has happened."""
        if self.failure is not None or (self._link is not None and self._link.ended):
            return
        ended = self._client.poll()  # asked first: a container that has ended hangs up before its client does
        if self._link is None:
            self._answer()
        if self._link is not None:
            self._hear_all(self._link)
        if self.failure is not None:
            return
        if self._link is not None and self._link.ended:
            self._hung_up(self._link)
        elif ended is not None:
            self._client_ended(ended)
        elif not self._started and time.monotonic() > self._start_by:
            self._fail(f"did not come up within {self._control.start_s:g} s: {self._control.where} hangs, or is very slow{self._words()}")

    def _hear_all(self, link: watchdog_socket.Link) -> None:
        try:
            for words in link.read():
                self._hear(words)
        except ContainerError as error:
            self._fail(str(error))

    def _hung_up(self, link: watchdog_socket.Link) -> None:
        self.events.unregister(link.fileno())
        if link.pid == self._client.pid:  # it hangs up while it ends, and its exit code comes at once
            select.select([self._client_fd], [], [], CLIENT_END_S)
        elif not self.memory_ran_out():  # below a client that is killed it may be gone before that is
            select.select([self._client_fd], [], [], KILLED_CLIENT_S)
        if self._client.poll() == -signal.SIGKILL:  # a client whose container was killed ends by itself, with 137
            self._client_ended(-signal.SIGKILL)
        elif not self._started:
            words = self._words() if self.ended_because is None else f": {self.ended_because}"
            self._fail(f"its first process ended before the ranks were started{words}")

    def _answer(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        self._link = watchdog_socket.Link(connection)
        self._memory = OomCount(self._link.pid)
        self.events.unregister(self._listener.fileno())
        self.events.register(self._link.fileno(), select.EPOLLIN)

    def _hear(self, words: Words) -> None:
        if words["say"] == "up":
            problem = self._wrong_gpus(words.get("gpus"))
            if self._unwanted:
                self._fail("was ended before its ranks were started")
            elif problem is not None:
                self._fail(problem, AllocationError)
            else:
                self._give()
        elif words["say"] == "started":
            self._started = True
            assert self._link is not None
            pids = words.get("pids", [])
            if len(pids) != len(self.processes):
                raise ContainerError(f"its first process tells of {len(pids)} ranks, and {len(self.processes)} were to be started")
            for process, pid in zip(self.processes, watchdog_socket.host_pids(self._link.pid, pids), strict=True):
                process.pid = pid
        elif words["say"] == "failed":
            if words.get("program"):
                what = f"; the image {self.plan.spec.image!r} does not have it, or nobody may execute it there"
                self._fail(f"{text(words.get('text'))}{what}", TrainingFailed)
            else:
                self._fail(text(words.get("text")))
        elif words["say"] == "ending":
            self.ended_because = text(words.get("text"))

    def _give(self) -> None:
        assert self._link is not None
        descriptors = [descriptor for process in self.processes for descriptor in process.give()]
        self._link.order("start", descriptors)
        self._given = True
        for descriptor in descriptors:
            os.close(descriptor)

    def _wrong_gpus(self, said: Listed | None) -> str | None:
        """Before anything starts in it: what the container sees against what was granted."""
        granted = self.plan.spec.gpus
        if said is None:
            return None
        if said["code"]:
            return f"`nvidia-smi -L` in it ended with {said['code']}: {said['text'].strip()[-500:]}; granted: {', '.join(granted)}"
        try:
            seen = listed_uuids(said["text"])
        except SlipwayError as error:
            return str(error)
        self.gpus_seen = tuple(seen)
        # what an engine cannot hide is told by the supervisor, which has all that is seen, and no error
        return compare(granted, [uuid for uuid in seen if uuid in granted] if self._control.sees_all_gpus else seen)

    def _client_ended(self, code: int) -> None:
        engine, name = self.plan.engine, self.plan.spec.name
        number = -code if code < 0 else code - 128  # docker's client gives a signal back as a shell does
        if code == -signal.SIGKILL:
            self._fail(f"the client of {engine} that held it was killed")
        elif self._link is None:
            self._fail(f"was not started: the client of {engine} ended with {code}{SHOWN}{self._words()}")
        elif number in ENDING_SIGNALS:
            self._fail(f"the client of {engine} that held it was ended by {signal.Signals(number).name}")
        else:
            self._fail(f"{self._control.where}: the daemon restarted or hung up on {name!r} while it ran{self._words()}")

    def _words(self) -> str:
        words = client.tail(self._directory / LOG)
        return f": {words}" if words else ""

    def _fail(self, why: str, kind: type[SlipwayError] = ContainerError) -> None:
        self.failure = kind(f"container {self.plan.spec.name}: {why}")
        if self._link is not None:
            self._link.order("kill")
        client.end(self._client)  # its descriptor stays readable: so every process is asked for its end

    def order(self, index: int, number: int) -> None:
        """Send a signal to a process in it. One that has not begun yet is not begun: the engine is let come so far that it can clean up."""
        if self._given and self._link is not None:
            self._link.order("signal", process=index, number=number)
        elif self.failure is None and number == signal.SIGKILL:
            self._fail("was ended before its ranks were started")
        elif number == signal.SIGTERM:
            self._unwanted = True

    def may_have_failed(self) -> SlipwayError | None:
        """Of a rank that was killed: why the container has failed, where its client was killed, which takes along what is in it. Waited for
        once: who ends many ranks is not to wait for each."""
        if not self._client_waited_for:
            self._client_waited_for = True
            select.select([self._client_fd], [], [], KILLED_CLIENT_S)
        self.pump()
        return self.failure

    @property
    def hung_up(self) -> bool:
        """Whether its first process has ended, and all that it said was heard."""
        return self._link is not None and self._link.ended

    def memory_ran_out(self) -> bool:
        """Whether the kernel has killed somebody in it for want of memory. To be asked at once when its first process has ended: soon after
        that the engine takes its cgroup away, and of a container that is removed by itself no engine tells why it ended."""
        return self._memory is not None and self._memory.rose()

    # -- the end

    def close(self) -> None:
        """Let the client end by itself where the container has; kill it where not. The watchdog ends with the link."""
        self.pump()
        if self._link is not None:
            over = self._link.ended
            if not over:
                self._link.order("kill")
            self._link.close()
            if over or self.failure is None:
                select.select([self._client_fd], [], [], CLIENT_END_S)
        client.end(self._client)
        self._listener.close()
        os.close(self._client_fd)
        self.events.close()


class ContainerProcess:
    """See containers.engines.Process. Both pipes are made here; the watchdog gets their other ends."""

    def __init__(self, container: Container, index: int, plan: ProcessPlan) -> None:
        self.plan = plan
        self.pid = 0
        self.oom_kill = False
        self._container, self._index = container, index
        self._code: int | None = None
        self.output_fd, output = os.pipe2(os.O_CLOEXEC)
        self._told, told = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.output_fd, False)
        os.set_blocking(self._told, False)
        self._theirs = [output, told]
        self._events = select.epoll()
        self._events.register(self._told, select.EPOLLIN)
        if index < MOST_WOKEN:
            self._events.register(container.events.fileno(), select.EPOLLIN)
        self.exit_fd = self._events.fileno()

    @property
    def gpus_seen(self) -> tuple[str, ...] | None:
        """What the container's own `nvidia-smi` lists."""
        return self._container.gpus_seen

    def give(self) -> list[int]:
        """The ends for the watchdog: output, exit."""
        theirs, self._theirs = self._theirs, []
        return theirs

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal, KILL where the whole container was. Raises ContainerError when that has failed, or
        AllocationError when it holds other GPUs, TrainingFailed when its image lacks the command."""
        if self._code is None:
            told = self._read_end() if self._container.failure is None else None
            if not told:  # an end that is told after the container has failed is our own doing; why it has failed, it says before it ends
                self._container.pump()
                if self._container.failure is not None:
                    raise self._container.failure
            if told:
                self._take(json_as(End, told.decode(errors="replace"), "the end of a rank in a container", ContainerError))
            elif told is not None and self._container.hung_up:  # until then it may still say why
                self._code, self.oom_kill = -signal.SIGKILL, self._container.memory_ran_out()
        return self._code

    def _take(self, answer: End) -> None:
        """Raises ContainerError for a rank that the watchdog has ended: that is no end of the rank's own."""
        code = answer["code"]
        oom_kill = answer["oom"] or (code == -signal.SIGKILL and self._container.memory_ran_out())
        if code == -signal.SIGKILL and not oom_kill and (failure := self._container.may_have_failed()) is not None:
            raise failure
        if code in BY_WATCHDOG and not oom_kill:
            self._container.pump()  # it says why before it does so
            if self._container.ended_because is not None:
                raise ContainerError(f"container {self._container.plan.spec.name}: was ended: {self._container.ended_because}")
        self._code, self.oom_kill = code, oom_kill

    def _read_end(self) -> bytes | None:
        """What the watchdog says of the end; empty where the watchdog has ended without a word, None while nothing has happened."""
        try:
            return os.read(self._told, 4096)
        except BlockingIOError:
            return None

    def signal(self, number: int) -> None:
        """By the watchdog, to its session's group."""
        if self._code is None:
            self._container.order(self._index, number)

    def close(self) -> None:
        """Give the descriptors back."""
        self._events.close()
        for descriptor in (self._told, self.output_fd, *self.give()):
            os.close(descriptor)
