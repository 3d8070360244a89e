"""A host that is reached by SSH: what every transport offers, and which one is taken.

There are two: the user's own `ssh`, which brings configuration, agent, second factor and jump hosts along, and paramiko where there is
none.
State never lies on the host that answered: several login nodes may stand behind one name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import IO, Final, Protocol, TypeVar

from base.errors import ConfigError, LineCut, RemoteError
from base.process import CommandResult, Sink, collect

Answer = TypeVar("Answer")
TRANSPORTS: Final = ("ssh", "paramiko")


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
    """Run `argv` there to its end. Raises as Transport.stream, and RemoteError for an answer that is too long."""

    def passing(out: Sink, err: Sink) -> int:
        return transport.stream(argv, out, err, stdin=stdin, limit_s=limit_s)

    return collect(argv, f"{argv[0]} on {transport.host}", passing, RemoteError)


def again(call: Callable[[], Answer]) -> Answer:
    """Return `call()`, which is repeated once if the connection was lost, as after a laptop has slept. Raises LineCut."""
    try:
        return call()
    except LineCut:
        return call()


# Time limits of connections to other hosts.


CONNECT_S: Final = 20
"""The time limit until a host answers."""
ALIVE_S: Final = 5
"""How often a line is asked whether it lives; after ALIVE_COUNT questions without an answer it counts as cut."""
ALIVE_COUNT: Final = 3
SILENT_S: Final = 20.0
"""The time limit of an answer of a host by paramiko."""
PERSIST_S: Final = 600
"""How long a connection without use stays open, so that a second factor is not asked for at each command."""
MUX_S: Final = 10.0
"""The time limit of a query to the master connection of this machine."""
ASK_S: Final = 300.0
"""The time limit of a login by a person with a second factor."""
CONFIG_S: Final = 20.0
"""The time limit of `ssh -G`, which may execute a command of the user's configuration."""
COPY_START_S: Final = 120.0
"""The time limit of a copy, in addition to the time that its bytes take at SLOWEST_BYTES_PER_S."""
SLOWEST_BYTES_PER_S: Final = 8192
MEMBER_BYTES: Final = 16384
"""The most bytes that tar needs for a member in addition to its content, with a long name."""
POLL_S: Final = 0.5
"""The pause between two looks at what has no descriptor of its own."""
