"""Reach a host by the user's own `ssh`, with a private master connection that all commands of one host share.

`ssh` brings configuration, agent, second factor and jump hosts along. State never lies on the host that answered: several login nodes may
stand behind one name.
"""

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, TypeVar

from base.errors import ConfigError, ConnectionCut, RemoteError
from base.process import CommandResult, Sink, collect, end_child, last_lines, pass_on, run, wait_or_end
from base.untrusted import trusted_directory

Answer = TypeVar("Answer")

# Time limits of connections to other hosts.


CONNECT_S: Final = 20
"""The time limit until a host answers."""
ALIVE_S: Final = 5
"""How often a connection is asked whether it lives; after ALIVE_COUNT questions without an answer it counts as cut."""
ALIVE_COUNT: Final = 3
PERSIST_S: Final = 600
"""How long a connection without use stays open, so that a second factor is not asked for at each command."""
MUX_S: Final = 10.0
"""The time limit of a query to the master connection of this machine."""
ASK_S: Final = 300.0
"""The time limit of a login by a person with a second factor."""
COPY_START_S: Final = 120.0
"""The time limit of a copy, in addition to the time that its bytes take at SLOWEST_BYTES_PER_S."""
SLOWEST_BYTES_PER_S: Final = 8192
MEMBER_BYTES: Final = 16384
"""The most bytes that tar needs for a member in addition to its content, with a long name."""

# What a connection failed of, by the words of `ssh`, and what to do. Pure.


DENIED: Final = re.compile(r"Permission denied \((?P<ways>[^)]*)\)|Too many authentication failures")
LOST: Final = re.compile(
    r"Connection (timed out|reset|closed|refused)|Connection to .* (closed|timed out)|No route to host|Network is unreachable|"
    r"Broken pipe|mux_client_|Timeout, server|kex_exchange_identification|Operation timed out|Temporary failure in name resolution"
)
"""Failures that may pass without any change."""


def is_lost(said: str) -> bool:
    """Return True if the connection, and not the login, failed, so that the same may succeed later."""
    return LOST.search(said) is not None and not DENIED.search(said)


def needs_person(said: str) -> bool:
    """Return True if the host asks for what only a person can give: a password, or a second factor."""
    found = DENIED.search(said)
    return found is not None and bool({"password", "keyboard-interactive"} & set((found["ways"] or "").split(",")))


def advice_on(host: str, said: str) -> str:
    """Write one paragraph for an error message."""
    if is_lost(said):
        return f"{host} is not reached now; the same command again goes on:\n{last_lines(said, 4)}"
    return (
        f"`ssh {host}` in a terminal must work first: there the key of a host that is not known, or has changed, is compared with what the "
        f"centre publishes, and none is accepted unseen here. A second factor is asked for by `slipway remote {host} setup` in a terminal, "
        f"and then the line stays open for ten minutes after each use. It said:\n{last_lines(said)}"
    )


# How an argv becomes the one line that a login shell there gets, and how its answer is told from what that shell says by itself.
#
# The login shell may be sh, csh or fish, which quote in three ways. So the words are quoted once, by shlex for sh, and what is no plain
# character of that travels as octal numbers, which every shell leaves alone between single quotes. Pure.


PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./- ")
MAX_LINE: Final = 100_000
"""Bytes: the kernel there takes 128 KiB for one word."""


def remote_line(argv: Sequence[str], word: str) -> str:
    """Build the line that prints `word` on a line of its own, on both streams, and then runs `argv`.

    Raises ValueError for no word at all, a null character, or more than MAX_LINE bytes.
    """
    if not argv or any("\0" in one for one in argv):
        raise ValueError(f"no argv that can be run there: {list(argv)!r}")
    script = f"printf '\\n{word}\\n'; printf '\\n{word}\\n' >&2; exec {shlex.join(argv)}"
    coded = "".join(chr(byte) if byte in PLAIN else f"\\0{byte:03o}" for byte in script.encode(errors="surrogateescape"))
    if len(coded) > MAX_LINE:
        raise ValueError(f"{argv[0]}: its arguments have {len(coded)} bytes, and at most {MAX_LINE} can travel on one line")
    return f"""exec /bin/sh -c 'eval "$(printf %b "$1")"' slipway '{coded}'"""


class BoundaryFilter:
    """A filter that hands over what follows the boundary `word` in a stream, and keeps at most MAX_NOISE bytes of the `noise` before it."""

    MAX_NOISE: Final = 1 << 16

    def __init__(self, word: str, sink: Sink) -> None:
        self.seen = False
        self.noise = b""
        self._mark = f"\n{word}\n".encode()
        self._sink = sink

    def take(self, data: bytes) -> None:
        if not self.seen:
            before, mark, data = (self.noise + data).partition(self._mark)
            self.seen, self.noise = bool(mark), before if mark else before[-self.MAX_NOISE :]
        if data:
            self._sink(data)


FAILED: Final = 255
"""What ssh ends with when the connection, and not the program, is at fault; no command of ours does."""
BLOCK: Final = 1 << 16
LONGEST_RUNTIME: Final = 32
"""Characters of a runtime directory with which the path of a socket stays below 108: `%C` and ssh add 58, we 12."""


class OpenSsh:
    """A connection to one host by the command ssh. It is made by the first command, and again by the next one after a cut."""

    def __init__(self, host: str) -> None:
        """Raise ConfigError for a host that is none, and RemoteError without `ssh`."""
        if not host or host.startswith("-") or any(character.isspace() or not character.isprintable() for character in host):
            raise ConfigError(f"{host!r} is no host; valid: a name of your ssh configuration, HOST, or USER@HOST")
        if shutil.which("ssh") is None:
            raise RemoteError("`ssh` is not here: install OpenSSH's client")
        self.host = host
        self._directory: Path | None = None

    def connect(self, *, ask: bool) -> None:
        """Open the master connection unless it is: silently where keys and agent suffice, else with a person, who is asked for a password
        or a second factor where `ask` allows that. Raises RemoteError."""
        if self._is_open():
            return
        code, said = self._open(["-o", "BatchMode=yes"], None, CONNECT_S * 2)
        if code == 0:
            return
        can_ask = ask and (sys.stdin.isatty() or os.environ.get("SSH_ASKPASS_REQUIRE") == "force")
        if needs_person(said) and can_ask:
            code, said = self._open([], sys.stdin if sys.stdin.isatty() else None, ASK_S)
        if code:
            raise (ConnectionCut if is_lost(said) else RemoteError)(advice_on(self.host, said))

    def stream(self, argv: Sequence[str], out: Sink, err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        """Run `argv` there, hand over what it says as it comes, and return its exit code. `stdin`: None gives it an empty one. Raises
        ConnectionCut when the connection is lost, RemoteError where it does not end within `limit_s` or never begins."""
        self.connect(ask=False)
        word = f"slipway-{secrets.token_hex(8)}"
        line = self._argv("-T", *([] if stdin else ["-n"]), "-o", "BatchMode=yes", "--", self.host, remote_line(argv, word))
        given = stdin if stdin is not None else subprocess.DEVNULL
        process = subprocess.Popen(line, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        program, messages = BoundaryFilter(word, out), BoundaryFilter(word, err)
        try:
            code = pass_on(process, program.take, messages.take, limit_s=limit_s)
        except subprocess.TimeoutExpired as error:
            raise RemoteError(f"{argv[0]} on {self.host} did not end within {limit_s:g} s") from error
        finally:
            end_child(process)
        said = (messages.noise + b"\n" + program.noise).decode(errors="replace").strip()
        if code == FAILED:
            is_cut = program.seen or not said or is_lost(said)
            words = f"the connection to {self.host} was cut" if program.seen or not said else advice_on(self.host, said)
            raise (ConnectionCut if is_cut else RemoteError)(words)
        if not program.seen:
            raise RemoteError(f"the login shell of {self.host} ended with {code} before {argv[0]} began; it said:\n{last_lines(said)}")
        return code

    def hang_up(self) -> bool:
        """End the master connection; False where there was none."""
        return self._is_open() and self._control("-O", "exit", "--", self.host).returncode == 0

    def _is_open(self) -> bool:
        return self._control("-O", "check", "--", self.host).returncode == 0

    def _control(self, *words: str) -> CommandResult:
        return run(self._argv(*words), timeout_s=MUX_S)

    def _open(self, words: Sequence[str], stdin: IO[str] | None, limit_s: float) -> tuple[int, str]:
        """Try to connect, and return ssh's exit code and its messages. A person is asked at the terminal."""
        argv = self._argv("-f", "-N", "-M", *words, "--", self.host)
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(argv, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
            code = wait_or_end(process, limit_s)
            if code is None:
                code = FAILED
                said.write(f"Connection timed out after {limit_s:g} s\n".encode())
            said.seek(0)
            return code, said.read(BLOCK).decode(errors="replace")

    def _argv(self, *words: str) -> list[str]:
        options = {
            "ControlMaster": "auto",
            "ControlPath": f"{self._sockets()}/%C",
            "ControlPersist": str(PERSIST_S),
            "ServerAliveInterval": str(ALIVE_S),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ConnectTimeout": str(CONNECT_S),
            "StrictHostKeyChecking": "yes",
            "ForwardX11": "no",
            "RequestTTY": "no",
            "RemoteCommand": "none",
        }
        return ["ssh", *(part for key, value in options.items() for part in ("-o", f"{key}={value}")), *words]

    def _sockets(self) -> Path:
        """Return a directory that only we can enter."""
        if self._directory is None:
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            place = Path(runtime, "slipway-ssh") if runtime and len(runtime) < LONGEST_RUNTIME else Path(f"/tmp/slipway-ssh-{os.getuid()}")
            self._directory = trusted_directory(place)
        return self._directory


def run_there(connection: OpenSsh, argv: Sequence[str], *, limit_s: float, stdin: IO[bytes] | None = None) -> CommandResult:
    """Run `argv` there to its end. Raises as OpenSsh.stream, and RemoteError for an answer that is too long."""

    def passing(out: Sink, err: Sink) -> int:
        return connection.stream(argv, out, err, stdin=stdin, limit_s=limit_s)

    return collect(argv, f"{argv[0]} on {connection.host}", passing, RemoteError)


def retry_once(call: Callable[[], Answer]) -> Answer:
    """Return `call()`, which is repeated once if the connection was lost, as after a laptop has slept. Raises ConnectionCut."""
    try:
        return call()
    except ConnectionCut:
        return call()


# Copy files to and from a host by tar, which every host has; a copy that is cut begins anew.


UNPACK = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'


def put(connection: OpenSsh, source: Path, target: str) -> None:
    """Copy the tree `source` to the directory `target` there, which is made. Raises as OpenSsh.stream, RemoteError where tar refuses."""
    output = bytearray()
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=".")
        limit_s = _limit_s(packed.tell())
        packed.seek(0)
        code = connection.stream(["/bin/sh", "-c", UNPACK, "sh", target], output.extend, output.extend, stdin=packed, limit_s=limit_s)
    if code:
        shown = output.decode(errors="replace").strip()
        raise RemoteError(f"{source} could not be unpacked in {target} on {connection.host} (exit code {code}): {shown}")


def get(connection: OpenSsh, source: str, files: Mapping[str, int], target: Path) -> None:
    """Copy `files`, by name with their bytes, from the directory `source` there below `target`: regular files alone, and those that came
    whole before a cut too. Raises as OpenSsh.stream, and RemoteError for more bytes than the files have."""
    most = sum(files.values()) + MEMBER_BYTES * (len(files) + 8)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile(dir=target) as packed:
        listed.write("".join(f"{name}\0" for name in files).encode(errors="surrogateescape"))
        listed.seek(0)
        try:
            argv = ["tar", "-cf", "-", "-C", source, "--null", "-T", "-"]
            connection.stream(argv, _writer(packed, most, connection.host), lambda _: None, stdin=listed, limit_s=_limit_s(most))
        finally:
            packed.seek(0)
            with suppress(
                tarfile.TarError, ValueError, OverflowError, MemoryError, RecursionError
            ):  # it ends where the line was cut, or is damaged
                _unpack(packed, files, target)


def _limit_s(num_bytes: int) -> float:
    return COPY_START_S + num_bytes / SLOWEST_BYTES_PER_S


def _unpack(packed: IO[bytes], files: Mapping[str, int], target: Path) -> None:
    with tarfile.open(fileobj=packed, mode="r:") as tar:  # compressed, or with holes, it could be larger than what was sent
        for member in tar:
            whole = member.size == files.get(member.name) and member.isreg() and not member.issparse()
            content = tar.extractfile(member) if whole else None
            if content is not None:
                here = target / member.name
                here.parent.mkdir(parents=True, exist_ok=True)
                with here.open("wb") as file:
                    shutil.copyfileobj(content, file)


def _writer(file: IO[bytes], most: int, host: str) -> Sink:
    def write(data: bytes) -> None:
        file.write(data)
        if file.tell() > most:
            raise RemoteError(f"{host} sends more than the {most} bytes of the files that were listed")

    return write
