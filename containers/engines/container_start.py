"""Start a container and watch it: its client in the foreground, and its watchdog at the other end of a socket, which
tells the ends of its ranks. The command lines are built in docker_podman.py, apptainer.py, enroot.py and pyxis.py.

Nothing here waits: the descriptors are watched by the node program's event loop, and what they bring is handled in `exit_code`. When the
ranks are told to end (shutdown), that goes to the watchdog; what the engine must do is done in `remove`, within limits.
"""

import contextlib
import json
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Final, NotRequired, TypedDict

from base import system, typed
from base.errors import AllocationError, ContainerError, SlipwayError, TrainingFailed
from base.process import CommandResult, communicate, dies_with_us, end_child, last_lines
from base.sanitize import text
from cluster import machine, processes
from cluster.gpus.decision import listed_uuids, mismatch
from containers.limits import CLIENT_END_S, CONTAINER_REMOVE_S, ENGINE_CALL_MIN_S, ENGINE_CALL_S, KILLED_CLIENT_S
from containers.spec import EnginePlan, ProcessPlan

# Calls of an engine's client: each has a time limit of its own, because a client waits for a daemon that hangs for ever.


def environment(hidden: Sequence[str]) -> dict[str, str]:
    """Return our environment variables but for those that begin with one of `hidden`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(tuple(hidden))} if hidden else dict(os.environ)


def call(argv: Sequence[str], limit_s: float = ENGINE_CALL_S, env: Mapping[str, str] | None = None) -> CommandResult:
    """Run it to its end, or to ours, since nobody reads its answer then. Raises ContainerError when it hangs, or when the client is not
    here."""
    process = spawn(argv, subprocess.PIPE, environment(()) if env is None else env, outlives_us=False)
    try:
        return communicate(process, b"", limit_s)
    except subprocess.TimeoutExpired as error:
        end(process)
        raise ContainerError(
            f"`{shlex.join(argv)}` does not answer: it had not ended after {limit_s:g} s; on this node, ask whether the engine hangs"
        ) from error
    except SlipwayError as error:
        end(process)
        raise ContainerError(f"`{shlex.join(argv)}`: {error}") from error


def spawn(argv: Sequence[str], output: int | IO[bytes], env: Mapping[str, str], *, outlives_us: bool = True) -> subprocess.Popen[bytes]:
    """Start a client in a session of its own: a signal to our group shall reach the ranks by the orderly shutdown only. Raises
    ContainerError.
    """
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=None if outlives_us else dies_with_us(),
        )
    except OSError as error:
        raise ContainerError(
            f"{argv[0]!r} cannot be started: {error.strerror}; is it on this node's PATH (`setup` in the site file)?"
        ) from error


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a client with what it started, in whatever process group (some engines serve the file system of an image by a process), and wait
    for it.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    end_child(process)
    processes.send(processes.session_of(process.pid), signal.SIGKILL)


def is_there(find: Sequence[str], limit_s: float = ENGINE_CALL_S) -> bool:
    """Return True if the container that `find` looks for exists. Raises ContainerError when that cannot be told."""
    result = call(find, limit_s)
    if result.returncode:
        raise ContainerError(f"`{shlex.join(find)}` ended with {result.returncode}: {last_lines(result.stderr, 3)}")
    return bool(result.stdout.strip())


def remove_container(name: str, find: Sequence[str], remove: Sequence[str], limit_s: float = ENGINE_CALL_S) -> None:
    """Remove a container until it is gone, by whomever. Raises ContainerError naming it, after some `limit_s`."""
    give_up = time.monotonic() + limit_s
    said = ""
    while is_there(find, max(ENGINE_CALL_MIN_S, give_up - time.monotonic())):
        if time.monotonic() > give_up:
            raise ContainerError(
                f"the container {name!r} was not removed within {limit_s:g} s: `{shlex.join(remove)}` says {said or 'nothing'}; type "
                "that command when the engine answers"
            )
        said = last_lines(call(remove, max(ENGINE_CALL_MIN_S, give_up - time.monotonic())).stderr, 3)


def tail(path: Path) -> str:
    """Return the last words of a client, from the file it wrote them to."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return last_lines(file.read().decode(errors="replace"), 5)
    except OSError:
        return ""


# Find out that a container ran out of memory, even if its first process was the victim.


class OomCount:
    """The number of times that the kernel has killed for want of memory in the cgroup of a process, seen from outside of it."""

    def __init__(self, pid: int) -> None:
        files = machine.oom_counters(Path(f"/proc/{pid}/cgroup"))
        self._before = {path: count for path in files if (count := machine.read_oom_kills(path)) is not None}
        self._risen = False

    def rose(self) -> bool:
        """Return True if the counts have risen since this was made; what was seen once stays true."""
        found = ((machine.read_oom_kills(path), before) for path, before in self._before.items())
        self._risen = self._risen or any(now is not None and now > before for now, before in found)
        return self._risen


# What the first process of a container may say to us, by type. It is checked, because a program in the container that somebody has taken
# over could speak in its place.


MAX_WORDS: Final = 1 << 20
"""Bytes of a line."""


class GpuList(TypedDict):
    """The exit code and the output of `nvidia-smi -L` in the container."""

    code: int
    text: str


class WatchdogMessage(TypedDict):
    """One message of the watchdog: `up` (gpus), `started` (pids), `failed` (text, and whether the program is not there), `ending` (text),
    and `ended` (the number of a process, its exit code, negative for a signal, and whether the kernel killed somebody for want of
    memory)."""

    type: str
    gpus: NotRequired[GpuList | None]
    pids: NotRequired[list[typed.Pid]]
    text: NotRequired[str]
    program: NotRequired[bool]
    process: NotRequired[typed.Count]
    code: NotRequired[Annotated[int, typed.between(-128, 255)]]
    oom: NotRequired[bool]


# Where the node program and the watchdog in a container meet: a unix socket in a directory of ours alone, JSON lines, descriptors.


SOCKET: Final = "control"
MAX_AT_ONCE: Final = 200
"""Descriptors of one message: the kernel takes 253."""


def prepare(directory: Path, files: Sequence[tuple[str, str]], owner: tuple[int, int] | None) -> None:
    """Write what the container reads. `owner`: the uid and gid inside, where they are not ours (we are root then)."""
    directory.mkdir(mode=0o700, exist_ok=True)
    paths = [directory]
    for name, content in files:
        path = directory / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(content)
        paths.append(path)
    if owner is not None:
        for path in paths:
            os.chown(path, *owner)


def listen(directory: Path, owner: tuple[int, int] | None) -> socket.socket:
    """Listen at a short name of the directory: a unix socket's path may have 107 bytes, and a cache's is longer soon."""
    (directory / SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
    if owner is not None:
        os.chown(directory / SOCKET, *owner)
    listener.listen(1)
    listener.setblocking(False)
    return listener


class WatchdogConnection:
    """The connection to a watchdog."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self.pid = int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        """The watchdog's, in our pid namespace."""
        self.ended = False
        connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def read(self) -> list[WatchdogMessage]:
        """Read the messages since. `ended` afterwards, if that was all. Raises ContainerError for what no watchdog says."""
        while not self.ended:
            try:
                data = self._connection.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._unread += data
            self.ended = not data
            if len(self._unread) > MAX_WORDS:
                break
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > MAX_WORDS:
            self._unread, self.ended = b"", True
            raise ContainerError(f"its first process says more than {MAX_WORDS} bytes at once, which no watchdog does")
        return [
            typed.json_as(WatchdogMessage, line.decode(errors="replace"), "the words of its first process", ContainerError)
            for line in lines
        ]

    def order(self, do: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Tell it to do something; nothing if it has ended. The messages are so small that they always fit. More descriptors than one of
        them can carry come before it: it keeps them in their order."""
        left = list(descriptors)
        try:
            while len(left) > MAX_AT_ONCE:
                socket.send_fds(self._connection, [b'{"do": "keep"}\n'], left[:MAX_AT_ONCE])
                del left[:MAX_AT_ONCE]
            socket.send_fds(self._connection, [json.dumps({"do": do, **fields}).encode() + b"\n"], left)
        except OSError:
            return  # `read` will find the end

    def close(self) -> None:
        self._connection.close()


def host_pids(watchdog: int, inner: Sequence[int]) -> list[int]:
    """Return the pids here of children of the watchdog, which it knows by their pids in there; 0 for one that cannot be found."""
    found = {}
    for state in processes.all_processes():
        if state.parent == watchdog:
            numbers = (system.status_field(state.pid, "NSpid") or str(state.pid)).split()
            found[int(numbers[-1])] = state.pid
    return [found.get(pid, 0) for pid in inner]


LOG: Final = "engine.log"
SHOWN: Final = " (`slipway plan --cell` shows its command)"
"""The advice in messages about a container of a study."""
ENDING_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
BY_WATCHDOG: Final = (-signal.SIGTERM, -signal.SIGKILL)

_RUNNING: Final[dict[str, "Container"]] = {}
"""Running containers by name: the processes of a plan are started one after the other, and are in one container."""


def start(plan: EnginePlan, index: int) -> "ContainerProcess":
    """Start one process of the plan, in the container that the first of them brings up. Raises ContainerError."""
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
    """Remove what is left; may be called again. Raises ContainerError naming what cannot be removed within CONTAINER_REMOVE_S."""
    close(plan)
    control = plan.container
    assert control is not None
    if control.find:
        remove_container(plan.spec.name, control.find, control.remove, CONTAINER_REMOVE_S)


class Container:
    """A container and its client, from the start of the client to the end of both. `failure`: why the container, not a program in it, has
    failed."""

    def __init__(self, plan: EnginePlan) -> None:
        control = plan.container
        assert control is not None
        self.plan, self._control = plan, control
        self._directory = Path(plan.spec.paths.control)
        self.failure: SlipwayError | None = None
        self.gpus_seen: tuple[str, ...] | None = None
        self._ended_because: str | None = None
        """Why its watchdog ends all that is in it, where that was not our order."""
        self._link: WatchdogConnection | None = None
        self._given = self._started = self._unwanted = self._client_waited_for = False
        self._killed: list[ContainerProcess] = []
        """Processes that ended by KILL: that may be the work of whoever killed the client, who has not been seen to end yet."""
        self._memory: OomCount | None = None
        user = plan.spec.user
        by_daemon = bool(control.find)  # whatever has none runs as we do
        owner = (user.uid, user.gid) if by_daemon and user is not None and os.geteuid() == 0 != user.uid else None
        prepare(self._directory, control.files, owner)
        self._listener = listen(self._directory, owner)
        self._start_by = time.monotonic() + control.start_s
        try:
            with (self._directory / LOG).open("wb") as log:
                self._client = spawn(control.run, log, environment(control.hidden))
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
        elif self._killed and not self._client_waited_for:  # once: who ends many ranks is not to wait for each
            self._client_waited_for = True
            select.select([self._client_fd], [], [], KILLED_CLIENT_S)
            self.pump()
        elif ended is not None:
            self._client_ended(ended)
        elif not self._started and time.monotonic() > self._start_by:
            self._fail(f"did not come up within {self._control.start_s:g} s: {self.plan.engine} hangs, or is very slow{self._words()}")
        for process in self._killed if self.failure is None else ():
            process.end(-signal.SIGKILL, False, self._ended_because)

    def _hear_all(self, link: WatchdogConnection) -> None:
        try:
            for words in link.read():
                if self.failure is None:  # an end after that is our own doing
                    self._hear(words)
        except ContainerError as error:
            self._fail(str(error))

    def _hung_up(self, link: WatchdogConnection) -> None:
        self.events.unregister(link.fileno())
        if link.pid == self._client.pid:  # it hangs up while it ends, and its exit code comes at once
            select.select([self._client_fd], [], [], CLIENT_END_S)
        elif not self._memory_ran_out():  # below a client that is killed it may be gone before that is
            select.select([self._client_fd], [], [], KILLED_CLIENT_S)
        if self._client.poll() == -signal.SIGKILL:  # a client whose container was killed ends by itself, with 137
            self._client_ended(-signal.SIGKILL)
        elif not self._started:
            words = self._words() if self._ended_because is None else f": {self._ended_because}"
            self._fail(f"its first process ended before the ranks were started{words}")
        else:
            oom_kill = self._memory_ran_out()
            for process in self.processes:  # the kernel counts a victim before it kills it: one in `_killed` was none
                process.end(-signal.SIGKILL, oom_kill and process not in self._killed, self._ended_because)

    def _answer(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        self._link = WatchdogConnection(connection)
        self._memory = OomCount(self._link.pid)
        self.events.unregister(self._listener.fileno())
        self.events.register(self._link.fileno(), select.EPOLLIN)

    def _hear(self, words: WatchdogMessage) -> None:
        if words["type"] == "up":
            problem = self._wrong_gpus(words.get("gpus"))
            if self._unwanted:
                self._fail("was ended before its ranks were started")
            elif problem is not None:
                self._fail(problem, AllocationError)
            else:
                self._give()
        elif words["type"] == "ended":
            self._hear_end(words.get("process", len(self.processes)), words.get("code"), words.get("oom", False))
        elif words["type"] == "started":
            self._started = True
            assert self._link is not None
            pids = words.get("pids", [])
            if len(pids) != len(self.processes):
                raise ContainerError(f"its first process tells of {len(pids)} ranks, and {len(self.processes)} were to be started")
            for process, pid in zip(self.processes, host_pids(self._link.pid, pids), strict=True):
                process.pid = pid
        elif words["type"] == "failed":
            self._hear_failure(words)
        elif words["type"] == "ending":
            self._ended_because = text(words.get("text"))

    def _hear_failure(self, words: WatchdogMessage) -> None:
        if words.get("program"):
            what = f"; the image {self.plan.spec.image!r} does not have it, or nobody may execute it there"
            self._fail(f"{text(words.get('text'))}{what}", TrainingFailed)
        else:
            self._fail(text(words.get("text")))

    def _hear_end(self, number: int, code: int | None, oom: bool) -> None:
        if number >= len(self.processes) or code is None:
            raise ContainerError(f"its first process tells of an end that is none: {code} of process {number}")
        oom_kill = oom or (code == -signal.SIGKILL and self._memory_ran_out())
        if code == -signal.SIGKILL and not oom_kill:
            self._killed.append(self.processes[number])
        else:
            self.processes[number].end(code, oom_kill, self._ended_because)

    def _give(self) -> None:
        assert self._link is not None
        descriptors = [descriptor for process in self.processes for descriptor in process.give()]
        self._link.order("start", descriptors)
        self._given = True
        for descriptor in descriptors:
            os.close(descriptor)

    def _wrong_gpus(self, said: GpuList | None) -> str | None:
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
        return mismatch(granted, [uuid for uuid in seen if uuid in granted] if self._control.sees_all_gpus else seen)

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
            self._fail(f"{engine}: the daemon restarted or hung up on {name!r} while it ran{self._words()}")

    def _words(self) -> str:
        words = tail(self._directory / LOG)
        return f": {words}" if words else ""

    def _fail(self, why: str, kind: type[SlipwayError] = ContainerError) -> None:
        self.failure = kind(f"container {self.plan.spec.name}: {why}")
        if self._link is not None:
            self._link.order("kill")
        end(self._client)  # its descriptor stays readable: so every process is asked for its end

    def order(self, index: int, number: int) -> None:
        """Send a signal to a process in it. One that has not begun yet is not begun: the engine is let come so far that it can clean up."""
        if self._given and self._link is not None:
            self._link.order("signal", process=index, number=number)
        elif self.failure is None and number == signal.SIGKILL:
            self._fail("was ended before its ranks were started")
        elif number == signal.SIGTERM:
            self._unwanted = True

    def _memory_ran_out(self) -> bool:
        """Return True if the kernel has killed somebody in it for want of memory. To be asked at once when its first process has ended:
        soon after that the engine takes its cgroup away, and of a container that is removed by itself no engine tells why it ended.
        """
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
        end(self._client)
        self._listener.close()
        os.close(self._client_fd)
        self.events.close()


class ContainerProcess:
    """A Process (see containers.engines) in a container, which tells its end: whatever happens there, the container's events wake."""

    def __init__(self, container: Container, index: int, plan: ProcessPlan) -> None:
        self.plan = plan
        self.pid = 0
        self.oom_kill = False
        self.exit_fd = container.events.fileno()
        self._container, self._index = container, index
        self._code: int | None = None
        self._failure: ContainerError | None = None
        self.output_fd, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.output_fd, False)
        self._theirs = [output]

    @property
    def gpus_seen(self) -> tuple[str, ...] | None:
        return self._container.gpus_seen

    def give(self) -> list[int]:
        """Return the end of its output that is for the watchdog."""
        theirs, self._theirs = self._theirs, []
        return theirs

    def end(self, code: int, oom_kill: bool, because: str | None) -> None:
        """Take its first end. `because`: why its watchdog ends all, which is no end of its own."""
        if self._code is not None or self._failure is not None:
            return
        if because is not None and code in BY_WATCHDOG and not oom_kill:
            self._failure = ContainerError(f"container {self._container.plan.spec.name}: was ended: {because}")
        else:
            self._code, self.oom_kill = code, oom_kill

    def exit_code(self) -> int | None:
        """Return None while it runs; negative for a signal, KILL where the whole container was. Raises ContainerError when that has failed,
        or AllocationError when it holds other GPUs, TrainingFailed when its image lacks the command.
        """
        if self._code is None:
            self._container.pump()
        failure = self._failure or self._container.failure
        if self._code is None and failure is not None:
            raise failure
        return self._code

    def signal(self, number: int) -> None:
        if self._code is None:
            self._container.order(self._index, number)

    def close(self) -> None:
        for descriptor in (self.output_fd, *self.give()):
            os.close(descriptor)
