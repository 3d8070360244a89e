"""A host that is reached by SSH: what every transport offers, and which one is taken.

There are two: the user's own `ssh`, which brings configuration, agent, second factor and jump hosts along, and paramiko where there is
none.
State never lies on the host that answered: several login nodes may stand behind one name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final, Protocol, TypeVar

from base.command import CommandResult
from base.errors import ConfigError, LineCut, RemoteError

Answer = TypeVar("Answer")
Sink = Callable[[bytes], None]
TRANSPORTS: Final = ("ssh", "paramiko")
MAX_ANSWER: Final = 64 << 20
"""Bytes of an answer that is read whole."""


class Transport(Protocol):
    """A line to one host. It is made by the first command, and again by the next one after a cut."""

    host: str

    def connect(self, *, ask: bool) -> None:
        """Log in unless that is done. `ask`: whether a person may be asked for a password or a second factor. Raises RemoteError."""

    def stream(self, argv: Sequence[str], out: Sink, err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        """Run `argv` there, hand over what it says as it comes, and return its exit code. `stdin`: None gives it an empty one. Raises
        LineCut when the line is lost, RemoteError where it does not end within `limit_s` or never begins."""

    def close(self) -> None:
        """Hang up."""


def transport_to(host: str, kind: str | None = None) -> Transport:
    """Choose the transport `kind`; None: `ssh` where it is installed.

    Raises ConfigError for a host that is none, and RemoteError without paramiko.
    """
    if not host or host.startswith("-") or any(character.isspace() or not character.isprintable() for character in host):
        raise ConfigError(f"{host!r} is no host; valid: a name of your ssh configuration, HOST, or USER@HOST")
    if (kind or ("ssh" if shutil.which("ssh") else "paramiko")) == "ssh":
        from cluster.ssh.openssh import OpenSsh

        return OpenSsh(host)
    from cluster.ssh.by_paramiko import ByParamiko

    return ByParamiko(host)


def run(transport: Transport, argv: Sequence[str], *, limit_s: float, stdin: IO[bytes] | None = None) -> CommandResult:
    """Run `argv` there to its end. Raises as Transport.stream, and RemoteError for an answer of more than MAX_ANSWER bytes."""
    said: tuple[bytearray, bytearray] = (bytearray(), bytearray())

    def into(one: bytearray) -> Sink:
        def sink(data: bytes) -> None:
            one.extend(data)
            if len(one) > MAX_ANSWER:
                raise RemoteError(f"{argv[0]} on {transport.host} says more than {MAX_ANSWER >> 20} MiB: that is no answer")

        return sink

    code = transport.stream(argv, into(said[0]), into(said[1]), stdin=stdin, limit_s=limit_s)
    stdout, stderr = (one.decode(errors="replace") for one in said)
    return CommandResult(argv=tuple(argv), returncode=code, stdout=stdout, stderr=stderr)


@contextmanager
def closing(transport: Transport) -> Iterator[Transport]:
    """Hang up at the end, whatever happens."""
    try:
        yield transport
    finally:
        transport.close()


def again(call: Callable[[], Answer]) -> Answer:
    """Return `call()`, which is repeated once if the connection was lost, as after a laptop has slept. Raises LineCut."""
    try:
        return call()
    except LineCut:
        return call()
