"""Connect supervisor and node programs: messages over TCP, after each side has proved that it knows the run's token.

The token travels over the node program's standard input, so that no other user of the node can read it from an argv or an environment;
on the socket go only keyed hashes of fresh challenges. The proof is base/handshake.py, in words of fixed length; no message is read before
it.
"""

import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from base import handshake, jsonfile, sanitize
from workflow.run.link import commands, reports
from workflow.run.link.event_loop import Loop

# Encode and decode the messages between supervisor and node programs: a line of JSON for each, from and to the types of `reports` and
# `commands`.
#
# Who has proved the token is a program of ours, of the same installation. A message that does not fit its type, as of other code on a node,
# ends the connection with a sentence.
#
# A message is a JSON object with its name under `say` or `do`. That format is no promise to anybody: the supervisor starts node programs
# from its own installation, so that both sides are of one version, and it may change with it.


MAX_SHOWN: Final = 80
MAX_WORDS: Final = 400
T = TypeVar("T")


class ProtocolError(Exception):
    """The other side says what no program of ours would say, or does not know the token."""


def name_of(message: reports.Message | commands.Message) -> str:
    """Return the name of a message, as it is on the wire and in sentences."""
    return str(message.__struct_config__.tag)


def encode(message: reports.Message | commands.Message) -> bytes:
    """Return the line of a message."""
    return jsonfile.json_line(msgspec.to_builtins(message))


class Decoder(Generic[T]):
    """A decoder of messages. `kinds` is the union of their types."""

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kinds)
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Return the messages that `data` completes. Raises ProtocolError for what is no message."""
        self._rest += data
        if b"\n" not in data:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [self._decode(line) for line in lines]

    def _decode(self, line: bytearray) -> T:
        try:
            return self._decoder.decode(line)
        except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
            shown, why = sanitize.text(line[:MAX_SHOWN].decode(errors="replace"), MAX_SHOWN), sanitize.text(str(error), MAX_WORDS)
            raise ProtocolError(f"a message that is none of ours ({shown}): {why}") from error


# Time limits of the link, and those that both sides keep.


HANDSHAKE_S: Final = 3.0
"""How long a connection may take to prove that it knows the run's token, so that nobody keeps the listener busy."""
NODE_CONNECT_S: Final = 60.0
"""How long after its launch a node program may take until it is ready: it tries to connect for as long as the supervisor waits for it."""
CONNECT_TRY_S: Final = 10.0
"""How long one try to connect may take: one that is not answered must not use up all of NODE_CONNECT_S."""
CONNECT_FIRST_PAUSE_S: Final = 0.05
"""The pause after the first try to connect; each one after it is twice as long."""
CONNECT_LONGEST_PAUSE_S: Final = 2.0
"""The longest pause between two tries to connect: a listener that is there is found soon."""
CANCELLED_PUSH_S: Final = 10.0
"""How long a push may still take when the run is told to end: schedulers kill what is left some 30 s after that, and what is kept on the
nodes has to be noted before."""


USE: Final = "link"
SUPERVISOR: Final = 2**32 - 1
"""Its index in a handshake: that of no node."""
RECEIVE_BYTES: Final = 1 << 18
CLOSED: Final = "the connection was closed"
BROKEN: Final = "the connection broke"


def connect(
    address: tuple[str, int], token: bytes, node: int, limit_s: float = NODE_CONNECT_S, wait: Callable[[float], None] = time.sleep
) -> socket.socket:
    """Return a connection to the supervisor, both sides proved. A node that is turned away tries again for `limit_s`. Raises ProtocolError
    for somebody else at that address; ConnectionRefusedError where nobody listens any more, OSError when the time is over."""
    give_up, pause_s = time.monotonic() + limit_s, CONNECT_FIRST_PAUSE_S
    while True:
        try:
            return _connect(address, token, node)
        except ConnectionRefusedError:
            raise
        except OSError:
            if time.monotonic() + pause_s > give_up:
                raise
        wait(pause_s * random.uniform(0.5, 1.0))  # not all nodes at the same moment
        pause_s = min(2 * pause_s, CONNECT_LONGEST_PAUSE_S)


def _connect(address: tuple[str, int], token: bytes, node: int) -> socket.socket:
    until = time.monotonic() + CONNECT_TRY_S
    connection = socket.create_connection(address, timeout=CONNECT_TRY_S)
    proof = handshake.Handshake(token, USE, node)
    try:
        greeting = _read(connection, len(handshake.HELLO), until)
        if greeting == handshake.HELLO:  # else nothing more may come
            greeting += _read(connection, handshake.GREETING_BYTES - len(handshake.HELLO), until)
        connection.sendall(proof.answer(greeting, SUPERVISOR))
        proof.check_welcome(_read(connection, handshake.WELCOME_BYTES, until), SUPERVISOR)
    except handshake.NoProof as error:
        connection.close()
        raise ProtocolError(
            f"the program at {address[0]} port {address[1]} is not the supervisor of this run: {error}; `ss -ltnp` there shows it"
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _read(connection: socket.socket, size: int, until: float) -> bytes:
    """Read exactly so many bytes. Raises OSError (TimeoutError at `until`)."""
    data = b""
    while len(data) < size:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the supervisor does not answer")
        connection.settimeout(left_s)
        found = connection.recv(size - len(data))
        if not found:
            raise ConnectionResetError(CLOSED)
        data += found
    return data


class Channel(Generic[T]):
    """A connection for messages in an event loop, used by both sides: it calls `on_messages(messages)` with what has come, in order, and
    `on_closed(why)` when the other side is gone or talks nonsense. `kinds` is the union of the messages' types. Writing never blocks: what
    cannot be sent at once waits here."""

    def __init__(
        self, loop: Loop, connection: socket.socket, kinds: Any, on_messages: Callable[[list[T]], None], on_closed: Callable[[str], None]
    ) -> None:
        self._loop, self._socket, self._on_messages, self._on_closed = loop, connection, on_messages, on_closed
        self._decoder = Decoder[T](kinds)
        self._unsent = bytearray()
        self._open = True
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # of a connection that is broken already, which says so when it is read
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(connection, self._readable)

    def send(self, message: reports.Message | commands.Message) -> None:
        """Send it, or as much as goes and the rest later; nothing once the channel is closed."""
        if self._open:
            self._unsent += encode(message)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            self._loop.watch(self._socket, self._readable, self._flush)
        except OSError as error:
            self._end(error.strerror or BROKEN)
        else:
            self._loop.watch(self._socket, self._readable)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
            messages = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self._end(getattr(error, "strerror", None) or str(error) or BROKEN)
            return
        if not data:
            self._end(CLOSED)
        elif messages:
            self._on_messages(messages)

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._on_closed(why)

    def close(self) -> None:
        """Close the connection without a call of `on_closed`."""
        if self._open:
            self._open = False
            self._loop.unwatch(self._socket)
            self._socket.close()


# The listener of the supervisor. A connection has a few seconds to prove that it knows the run's token.


logger = logging.getLogger(__name__)


class _Pending:
    """A connection that has not proved anything yet."""

    def __init__(self, connection: socket.socket, token: bytes) -> None:
        self.connection = connection
        self.handshake = handshake.Handshake(token, USE, SUPERVISOR)
        self.answer = b""


class Listener:
    """A listener on `address` while anybody is expected. `expects(index)` says whether that node, below `most`, may come in now;
    `admit(index, connection)` gets its connection."""

    def __init__(  # noqa: PLR0913 - the last one is for tests
        self,
        loop: Loop,
        address: str,
        token: bytes,
        expects: Callable[[int], bool],
        admit: Callable[[int, socket.socket], None],
        most: int,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._loop, self._token, self._expects, self._admit, self._most = loop, token, expects, admit, most
        self._handshake_s = handshake_s
        self._pending: handshake.PendingConnections[_Pending] = handshake.PendingConnections()
        self._refusals = handshake.Refusals(logger)
        self._open, self._looks = True, False
        self._listener = handshake.listen(address, most)
        host, port = self._listener.getsockname()[:2]
        self.address = (str(host), int(port))
        self._listen()

    def _listen(self) -> None:
        if self._open:
            self._loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            found = handshake.accept_pending(self._listener)
        except handshake.NoDescriptors as error:
            self._refusals.note(str(error))
            self._loop.unwatch(self._listener)
            self._loop.after(handshake.ACCEPT_PAUSE_S, self._listen)
            return
        for connection, host in found:
            self._greet(connection, host)

    def _greet(self, connection: socket.socket, host: str) -> None:
        if not self._open:  # one before this one was the last that was expected
            connection.close()
            return
        connection.setblocking(False)
        pending = _Pending(connection, self._token)
        self._pending.add(pending, host)
        self._look_later()
        self._loop.watch(connection, lambda: self._answered(pending))
        try:
            connection.send(pending.handshake.greeting())  # it fits into any socket's buffer
        except OSError as error:
            self._dismiss(pending, error.strerror or BROKEN)
        oldest = self._pending.surplus()
        if oldest is not None:
            self._answered(oldest)  # his answer may be here, and not read yet
            self._dismiss(oldest, "too many wait, and it was the oldest")

    def _answered(self, pending: _Pending) -> None:
        """Check the proof of a connection. It may send anything, and an error in what it sends is never ours."""
        try:
            found = pending.connection.recv(handshake.ANSWER_BYTES - len(pending.answer))
            if not found:
                raise ConnectionResetError(CLOSED)
            pending.answer += found
            if len(pending.answer) < handshake.ANSWER_BYTES:
                return
            index, _, welcome = pending.handshake.check_answer(pending.answer)
            if not self._expects(index):
                raise ProtocolError(f"node {index} is not expected")
            pending.connection.send(welcome)
        except BlockingIOError:
            return
        except (handshake.NoProof, ProtocolError, OSError) as error:
            self._dismiss(pending, str(error))
            return
        self._forget(pending)
        self._admit(index, pending.connection)
        if not any(self._expects(index) for index in range(self._most)):
            self.close()

    def _look_later(self) -> None:
        if self._pending and not self._looks:
            self._looks = True
            self._loop.after(self._handshake_s / 4, self._look)

    def _look(self) -> None:
        self._looks = False
        for pending in self._pending.overdue(self._handshake_s):
            self._dismiss(pending, "it took too long")
        self._look_later()

    def _dismiss(self, pending: _Pending, why: str) -> None:
        if pending in self._pending:
            self._refusals.note(why)
            self._forget(pending)
            pending.connection.close()

    def _forget(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        self._loop.unwatch(pending.connection)

    def close(self) -> None:
        """Let nobody in any more."""
        if not self._open:
            return
        self._open = False
        self._loop.unwatch(self._listener)
        self._listener.close()
        for pending in self._pending:
            self._forget(pending)
            pending.connection.close()
        self._refusals.log()
