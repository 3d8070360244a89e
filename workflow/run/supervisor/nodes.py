"""Launch and hear the node programs of a run, and notice a lost node: its silence, or the end of its connection or launch."""

import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

from base import handshake, logs, process
from cluster.launching import Launched
from cluster.types import Allocation, Launch, Node
from workflow.run.link import commands, event_loop, reports
from workflow.run.link.protocol import Channel, Listener, name_of
from workflow.run.supervisor import step_limits

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=reports.Message)


class NodeHandle:
    """One node program, with its last message of each kind."""

    def __init__(self, index: int, node: Node) -> None:
        self.index = index
        self.node = node
        self.channel: Channel[reports.Report] | None = None
        self.lost = False
        self.dismissed = False
        """It was told to end, and does that by itself: its launch, which ends after it, is left alone meanwhile."""
        self.heard = time.monotonic()
        self._reports: dict[type[reports.Message], reports.Message] = {}

    def note(self, message: reports.Message) -> None:
        self._reports[type(message)] = message

    def last(self, kind: type[S]) -> S | None:
        """Return the last message of this kind, None if none has come since it was last forgotten."""
        return cast("S | None", self._reports.get(kind))

    def answer(self, kind: type[S]) -> S:
        """Return the last message of this kind, which has been waited for."""
        found = self.last(kind)
        assert found is not None, f"{self.node.name} has not said {kind.__name__}"
        return found

    def has_reported(self, *kinds: type[reports.Message]) -> bool:
        return any(kind in self._reports for kind in kinds)

    def forget(self, *kinds: type[reports.Message]) -> None:
        for kind in kinds:
            self._reports.pop(kind, None)

    def hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    @property
    def has_begun(self) -> bool:
        return bool(self._reports)


def how_it_ended(code: int, words: str) -> str:
    """Describe the end of a launcher. One may print an error and exit with 0; the code is given only if it tells something."""
    said = f"its program ended with {code}" if code else "its program ended"
    return f"{said}: {words}" if words else f"{said}, and said nothing"


def transient_reason(launch: Launch, words: str) -> str:
    """Return the transient reason for which a launch that printed `words` ended before it started anything, else ""."""
    known = (
        ("the scheduler does not answer", launch.silence),
        ("the scheduler takes for living what has ended on these nodes", launch.outdated),
    )
    for meaning, signs in known:
        line = next((line for line in words.splitlines() for sign in signs if sign in line), "")
        if line:
            return f"{meaning} ({line.strip()})"
    return ""


class Nodes:
    """All node programs of an allocation, which come in at `address`, one of ours. `on_message(node, message)` and `on_lost(node, why)` are
    called in the loop; a node that says nothing for `limits.node_silence_s` is lost."""

    def __init__(
        self,
        loop: event_loop.Loop,
        allocation: Allocation,
        address: str,
        on_message: Callable[[NodeHandle, reports.Report], None],
        on_lost: Callable[[NodeHandle, str], None],
        limits: step_limits.AttemptLimits = step_limits.DEFAULT_LIMITS,
    ) -> None:
        self._loop, self._on_message, self._on_lost = loop, on_message, on_lost
        self._silence_s, self._pause_s = limits.node_silence_s, limits.launch_pause_s
        self._token = handshake.new_token()
        self._launched: list[Launched] = []
        self._leaving = False
        self.launched = time.monotonic()
        """The moment of the last launch, or of the next one: node programs are waited for from then on."""
        self.all = [NodeHandle(index, node) for index, node in enumerate(allocation.nodes)]
        self._listener = Listener(loop, address, self._token, self._expects, self._admit, len(self.all), limits.handshake_s)
        self.address = self._listener.address
        loop.every(min(step_limits.SUPERVISOR_ALIVE_EVERY_S, limits.node_silence_s / 4), self._beat)

    # -- coming up

    def launch(self, launches: Iterable[Launch], environ: Mapping[str, str], held: tuple[int, ...] = ()) -> None:
        """Start the commands that bring node programs up; they inherit the descriptors `held`. Raises AllocationError."""
        env = {**environ, **process.packages_environ(environ)}
        for launch in launches:
            self._launch(launch, env, held, time.monotonic() + step_limits.LAUNCH_RETRY_S)

    def _launch(self, launch: Launch, env: Mapping[str, str], held: tuple[int, ...], give_up: float) -> None:
        launched = Launched(launch, self._token.hex().encode() + b"\n", env, held)
        self._launched.append(launched)
        self.launched = time.monotonic()
        again = partial(self._launch, launch, env, held, give_up)
        self._loop.watch(launched.stderr_fd, partial(self._words, launched))
        self._loop.watch(launched.exit_fd, partial(self._launch_ended, launched, again, give_up))

    def _words(self, launched: Launched) -> None:
        words = launched.read_stderr()
        if words:
            sys.stderr.write(logs.printable(logs.masked(words.decode(errors="replace"))))
            sys.stderr.flush()
        else:
            self._loop.unwatch(launched.stderr_fd)

    def set_granted(self, nodes: Sequence[Node]) -> None:
        """Note what the nodes were granted."""
        for handle, node in zip(self.all, nodes, strict=True):
            handle.node = node

    def _expects(self, index: int) -> bool:
        return 0 <= index < len(self.all) and self.all[index].channel is None and not self.all[index].lost

    def _admit(self, index: int, connection: socket.socket) -> None:
        node = self.all[index]
        received, hung_up = partial(self._received, node), partial(self._hung_up, node)
        node.channel = Channel[reports.Report](self._loop, connection, reports.Report, received, hung_up)

    # -- talking

    def send(self, node: NodeHandle, order: commands.Command) -> None:
        """Tell one node to do something; nothing if it is lost."""
        if node.channel is not None:
            node.channel.send(order)

    def send_end(self, node: NodeHandle, pending: commands.Pending | None) -> None:
        """Tell one node to end; `pending`: what it is to keep."""
        node.dismissed = node.channel is not None
        self.send(node, commands.End(pending=pending))

    def send_all(self, order: commands.Command) -> None:
        for node in self.all:
            self.send(node, order)

    def ask(self, order: commands.Command, answer: type[reports.Message], limit_s: float) -> None:
        """Tell all nodes, and wait for the answers of those that can be talked to, at most `limit_s`."""
        self.forget(answer)
        self.send_all(order)
        if not self._loop.until(lambda: all(node.has_reported(answer) for node in self.present()), limit_s):
            late = ", ".join(node.node.name for node in self.present() if not node.has_reported(answer))
            logger.warning("no answer to the command %s from %s within %.0f s; going on without it", name_of(order), late, limit_s)

    def forget(self, *kinds: type[reports.Message]) -> None:
        """Forget what was said of these kinds, to ask again."""
        for node in self.all:
            node.forget(*kinds)

    def present(self) -> list[NodeHandle]:
        return [node for node in self.all if node.channel is not None]

    def _received(self, node: NodeHandle, messages: list[reports.Report]) -> None:
        """Note all before anything is done about it: the first may end the run."""
        node.heard = time.monotonic()
        for message in messages:
            node.note(message)
        for message in messages:
            self._on_message(node, message)

    # -- losing

    def give_up_silent(self) -> tuple[str, ...]:
        """Take nodes for lost that have said nothing lately, and return the names of all lost nodes; none where all are silent, since it is
        we then who hear nothing. The scheduler kills the rest of the job soon: the end of the run must not wait for a node that is dead."""
        now = time.monotonic()
        found = [node for node in self.all if node.lost or (node.channel is not None and now - node.heard > step_limits.NODE_DOUBT_S)]
        if len(found) == len(self.all):
            return ()
        for node in found:
            self._lose(node, f"nothing heard from it for {now - node.heard:.0f} s")
        return tuple(node.node.name for node in found)

    def _beat(self) -> None:
        self.send_all(commands.Alive())
        now = time.monotonic()
        for node in self.present():
            if now - node.heard > self._silence_s:
                self._lose(node, f"nothing heard from it for {now - node.heard:.0f} s")

    def _hung_up(self, node: NodeHandle, why: str) -> None:
        """Drop the node a moment later: its process then has ended, and its exit code says more than the end of the connection."""
        node.channel = None
        self._loop.after(step_limits.HUNG_UP_S, partial(self._lose, node, why))

    def _launch_ended(self, launched: Launched, again: Callable[[], None], give_up: float) -> None:
        code = launched.poll()
        if code is None:
            return
        self._loop.unwatch(launched.exit_fd)
        self._words(launched)
        words = process.last_lines(logs.printable(logs.masked(launched.last_words.decode(errors="replace"))), 5)
        pause_s = self._pause(launched, code, words, give_up)
        if pause_s is not None:
            self.launched = time.monotonic() + pause_s
            self._loop.after(pause_s, lambda: None if self._leaving or self._has_begun(launched.launch) else again())
            return
        times = sum(other.launch is launched.launch for other in self._launched)
        follows_a_mute_one = launched.launch.may_be_mute and times > 1  # what one before it started may have come in
        if self._has_begun(launched.launch) and (follows_a_mute_one or self._is_mute(launched, code, words)):
            return  # what becomes of its nodes, their links say
        for index in launched.launch.nodes:
            self._lose(self.all[index], how_it_ended(code, words))

    def _pause(self, launched: Launched, code: int, words: str, give_up: float) -> float | None:
        """Return the seconds until it is started again, None if something has come of it, or it has told why it has ended."""
        launch = launched.launch
        if self._leaving or self._has_begun(launch):
            return None
        mute = "the launcher has started nothing, and says nothing" if self._is_mute(launched, code, words) else ""
        retry_reason = transient_reason(launch, words) or mute
        if retry_reason and time.monotonic() < give_up:
            logger.warning("%s; node programs are started again in %g s", retry_reason, self._pause_s)
            return self._pause_s
        return None

    def _is_mute(self, launched: Launched, code: int, words: str) -> bool:
        return launched.launch.may_be_mute and not code and not words

    def _has_begun(self, launch: Launch) -> bool:
        return any(self.all[index].has_begun or self.all[index].channel is not None for index in launch.nodes)

    def _lose(self, node: NodeHandle, why: str) -> None:
        if node.lost:
            return
        node.lost = True
        node.hang_up()
        self._end_silent_launches()
        if not self._leaving:
            self._on_lost(node, why)

    def _end_silent_launches(self) -> None:
        for launched in self._launched:
            nodes = [self.all[index] for index in launched.launch.nodes]
            if all(node.channel is None and not node.dismissed for node in nodes):
                self._end_launch(launched)

    def _end_launch(self, launched: Launched) -> None:
        """Send TERM, which makes a node program end all it started, and CONT, in case it was stopped."""
        if launched.poll() is None:
            launched.signal(signal.SIGTERM)
            launched.signal(signal.SIGCONT)

    # -- ending

    def end(self, limit_s: float, pending: Callable[[NodeHandle], commands.Pending] | None = None) -> None:
        """End all node programs within `limit_s`, and let nobody in any more; `pending(node)` is what a node is to keep."""
        self.expect_ends()
        for node in self.all:
            self.send_end(node, None if pending is None else pending(node))
        if not self.wait_for_end(limit_s):
            logger.warning(
                "node programs were killed, since they did not end within %.0f s of the order; `slipway reap` there ends what they left",
                limit_s,
            )
        self.close()

    def expect_ends(self) -> None:
        """Let node programs go: from now on that is no loss. Those that have not come up yet have started nothing, and are ended."""
        self._leaving = True
        self._end_silent_launches()

    def wait_for_end(self, limit_s: float) -> bool:
        """Wait until every launch has ended; TERM is sent shortly before the limit, KILL at it. Return False if one was killed."""
        ended = self._have_ended(limit_s - step_limits.LAUNCH_TERM_S)
        if not ended:
            for launched in self._launched:
                self._end_launch(launched)
            ended = self._have_ended(step_limits.LAUNCH_TERM_S)
        for launched in self._launched:
            if launched.poll() is None:
                launched.signal(signal.SIGKILL)
            self._words(launched)
            self._loop.unwatch(launched.stderr_fd)
            self._loop.unwatch(launched.exit_fd)
            launched.close()
        self._launched = []
        return ended

    def _have_ended(self, limit_s: float) -> bool:
        return self._loop.until(lambda: all(launched.poll() is not None for launched in self._launched), limit_s)

    def close(self) -> None:
        self._listener.close()
        for node in self.all:
            node.hang_up()
