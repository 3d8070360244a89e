"""SSH by the library paramiko, where there is no `ssh`: the extra `remote`. Each use is a connection of its own until close().

paramiko trusts nobody unasked here; it does not know lines with a mark in known_hosts, and reads none of the file then, so that file is
read here. It notices a dead line by channel timeouts alone (measured: keep-alive does not end a blocked read).
"""

from __future__ import annotations

import base64
import fnmatch
import getpass
import hashlib
import hmac
import logging
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from base.errors import LineCut, RemoteError
from base.logs import printable
from base.process import Sink
from cluster.ssh import ALIVE_S, CONNECT_S, POLL_S, SILENT_S
from cluster.ssh.openssh import After, HostSettings, advice_on, remote_line, settings_of

# The keys under which a host is known, read line by line: a line with a mark is none of these, and must not hide the others.


SSH_PORT = 22


class Known(NamedTuple):
    """The keys (kind, base64) of a known host; `authority`: the file with a certificate authority for it, None if there is none."""

    keys: frozenset[tuple[str, str]]
    authority: str | None


def known_keys(wanted: HostSettings) -> Known:
    """Read the keys of a host from the files in its settings, as far as they exist."""
    name = wanted.alias if wanted.port == SSH_PORT or wanted.alias != wanted.hostname else f"[{wanted.hostname}]:{wanted.port}"
    texts = []
    for file in wanted.known_hosts:
        try:
            texts.append((file, Path(file).read_text(errors="replace")))
        except OSError:
            continue  # ssh takes no notice of one that is not there either
    return parse_known(texts, name.lower())


def parse_known(files: Iterable[tuple[str, str]], name: str) -> Known:
    """Parse pairs of a file and its text. A revoked key is no key of the host."""
    keys: set[tuple[str, str]] = set()
    revoked: set[tuple[str, str]] = set()
    authority = None
    for file, mark, key in _lines_of(files, name):
        if mark == "@cert-authority":
            authority = authority or file
        else:
            (revoked if mark == "@revoked" else keys).add(key)
    return Known(frozenset(keys - revoked), authority)


def _lines_of(files: Iterable[tuple[str, str]], name: str) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yield (file, mark or "", (kind, base64)) for each line about `name`."""
    for file, text in files:
        for line in text.splitlines():
            words = line.split()
            mark = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) >= 3 and not words[0].startswith("#") and is_about(words[0], name):
                yield file, mark, (words[1], words[2])


def is_about(patterns: str, name: str) -> bool:
    """Return True if the first field of a line names the host: hashed, or by patterns, none of which with `!` matches."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    found = [(one.startswith("!"), fnmatch.fnmatchcase(name, _literal(one.removeprefix("!").lower()))) for one in patterns.split(",")]
    return any(fits and not negated for negated, fits in found) and not any(fits and negated for negated, fits in found)


def _literal(pattern: str) -> str:
    return pattern.replace("[", "[[]")


def _is_hash_of(field: str, name: str) -> bool:
    try:
        _, _, salt, digest = field.split("|")
        found = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(found, base64.b64decode(digest))
    except ValueError:
        return False


BLOCK: Final = 1 << 15
MUST_ASK: Final = "a second factor is asked for, and there is no terminal to ask on"


class ByParamiko:
    """A Transport by paramiko."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._transport: Any = None

    def connect(self, *, ask: bool) -> None:
        """Log in by agent and keys, then what a person is asked for."""
        if self._transport is not None and self._transport.is_active():
            return
        self.close()
        paramiko = _paramiko()
        wanted = settings_of(self.host)
        if wanted.proxy:
            raise RemoteError(f"{self.host} is reached by another host ({wanted.proxy}), which only `ssh` can do: install OpenSSH's client")
        try:
            transport = paramiko.Transport(socket.create_connection((wanted.hostname, wanted.port), CONNECT_S))
            self._transport = transport
            transport.banner_timeout = transport.auth_timeout = CONNECT_S
            known = known_keys(wanted)
            if known.keys:
                transport.get_security_options().key_types = _preferred(transport, known)
            transport.start_client(timeout=CONNECT_S)
            self._refuse_strange_key(known, wanted)
            transport.set_keepalive(ALIVE_S)
            self._log_in(paramiko, wanted, ask)
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.close()
            lost = isinstance(error, OSError | EOFError) and not isinstance(error, socket.gaierror)
            words = f"{self.host} is not reached now, and the same command again goes on" if lost else f"SSH to {self.host} failed"
            raise (LineCut if lost else RemoteError)(f"{words}: {error or type(error).__name__}") from error
        except RemoteError:
            self.close()
            raise

    def _refuse_strange_key(self, known: Known, wanted: HostSettings) -> None:
        """Raise RemoteError unless known_hosts has exactly this key."""
        key = self._transport.get_remote_server_key()
        if (key.get_name(), key.get_base64()) in known.keys:
            return
        name = key.get_name()
        if any(kind == name for kind, _ in known.keys):
            raise RemoteError(advice_on(self.host, f"REMOTE HOST IDENTIFICATION HAS CHANGED\n{_fingerprint(key)}"))
        if known.authority:
            raise RemoteError(
                f"{wanted.hostname} is known by a certificate authority alone ({known.authority}), which paramiko cannot check: install "
                "OpenSSH's client (`ssh`)"
            )
        raise RemoteError(advice_on(self.host, f"No {name} host key is known for {wanted.hostname}\n{_fingerprint(key)}"))

    def _log_in(self, paramiko: Any, wanted: HostSettings, ask: bool) -> None:
        """Try public keys, then keyboard-interactive where the host wants more. Raises RemoteError."""
        transport = self._transport
        left: list[str] = ["publickey"]
        with closing(_keys(paramiko, wanted)) as keys:
            for key in keys:
                try:
                    left = transport.auth_publickey(wanted.user, key)
                except paramiko.BadAuthenticationType as error:
                    left = list(error.allowed_types)
                    break
                except paramiko.AuthenticationException:
                    continue
                if transport.is_authenticated():
                    return
                break
        if "keyboard-interactive" in left or left == ["publickey"]:
            if not (ask and sys.stdin.isatty()):
                raise RemoteError(f"{self.host}: {MUST_ASK}: type this in a terminal, or install OpenSSH's client")
            with suppress(paramiko.BadAuthenticationType, paramiko.AuthenticationException):
                transport.auth_interactive(wanted.user, _answers)
        if not transport.is_authenticated():
            raise RemoteError(advice_on(self.host, f"Permission denied ({','.join(left)})"))

    def stream(self, argv: Sequence[str], out: Sink, err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        self.connect(ask=False)
        paramiko = _paramiko()
        word = f"slipway-{secrets.token_hex(8)}"
        program, messages = After(word, out), After(word, err)
        try:
            channel = self._transport.open_session(timeout=CONNECT_S)
            with channel:
                channel.settimeout(SILENT_S)
                channel.exec_command(remote_line(argv, word))
                self._pass_on(channel, (program.take, messages.take), _Feed(channel, stdin), argv[0], limit_s)
                code = int(channel.recv_exit_status()) if channel.exit_status_ready() else -1
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.close()
            raise LineCut(f"the line to {self.host} was cut: {error or type(error).__name__}") from error
        if code < 0:
            self.close()
            raise LineCut(f"the line to {self.host} was cut")
        if not program.seen:
            said = (messages.noise + program.noise).decode(errors="replace").strip()
            raise RemoteError(f"the login shell of {self.host} ended with {code} before {argv[0]} began; it said:\n{said}")
        return code

    def _pass_on(self, channel: Any, sinks: Sequence[Sink], feed: _Feed, program: str, limit_s: float | None) -> None:
        """Copy until the other end has closed. Raises EOFError if the host is silent, RemoteError when the time is over."""
        readers = ((channel.recv_ready, channel.recv), (channel.recv_stderr_ready, channel.recv_stderr))
        asked = begun = time.monotonic()
        while True:
            moved = feed.some()
            for sink, (ready, read) in zip(sinks, readers, strict=True):
                while ready():
                    moved = True
                    sink(read(BLOCK))
            if channel.exit_status_ready() and channel.eof_received and not channel.recv_ready() and not channel.recv_stderr_ready():
                return
            if channel.closed:
                return
            if limit_s is not None and time.monotonic() - begun > limit_s:
                raise RemoteError(f"{program} on {self.host} did not end within {limit_s:g} s")
            if not moved:
                select.select([channel], [], [], POLL_S if feed.is_over else 0.01)
                if time.monotonic() - asked > ALIVE_S:
                    self._answers()
                    asked = time.monotonic()

    def _answers(self) -> None:
        """Ask for an answer, which any server gives. Raises EOFError where none comes within SILENT_S."""
        asking = threading.Thread(target=self._ping, daemon=True)
        asking.start()
        asking.join(SILENT_S)
        if asking.is_alive() or not self._transport.is_active():
            raise EOFError("it does not answer")

    def _ping(self) -> None:
        with suppress(Exception):  # a transport that ends meanwhile says so itself
            self._transport.global_request("keepalive@openssh.com", wait=True)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None


class _Feed:
    """The standard input of a remote program, sent as fast as the program reads it."""

    def __init__(self, channel: Any, content: IO[bytes] | None) -> None:
        self._channel, self._content = channel, content
        self._left = b""
        self.is_over = False

    def some(self) -> bool:
        """Send some bytes if possible. Return True if some were sent."""
        if self.is_over:
            return False
        if not self._left and self._content is not None:
            self._left = self._content.read(BLOCK)
        if not self._left:
            self.is_over = True
            self._channel.shutdown_write()
            return True
        if not self._channel.send_ready():
            return False
        self._left = self._left[self._channel.send(self._left) :]
        return True


def _paramiko() -> Any:
    try:
        import paramiko
    except ImportError as error:
        raise RemoteError(
            "neither `ssh` nor paramiko is here: install OpenSSH's client, or the extra `remote` (pip install 'slipway-cluster[remote]')"
        ) from error
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # what goes wrong is told by our errors
    return paramiko


def _preferred(transport: Any, known: Known) -> tuple[str, ...]:
    """Return the kinds of keys, known ones first as OpenSSH does, so that a host with several keys shows one that can be compared."""
    offered = tuple(transport.get_security_options().key_types)
    kinds = {kind for kind, _ in known.keys}
    kinds |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in kinds else set()
    return (*(kind for kind in offered if kind in kinds), *(kind for kind in offered if kind not in kinds))


def _keys(paramiko: Any, wanted: HostSettings) -> Generator[Any, None, None]:
    """Yield the keys of the agent, which sign as long as this is open, then the files that need no passphrase."""
    with closing(paramiko.Agent()) as agent:
        yield from agent.get_keys()
    for file in wanted.identity_files:
        if Path(file).exists():
            # Encrypted (cryptography's TypeError passes through paramiko), or of a kind that it does not know: the agent has it.
            with suppress(paramiko.SSHException, OSError, ValueError, TypeError):
                yield paramiko.PKey.from_path(file)


def _answers(title: str, instructions: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
    for words in (title, instructions):
        if words.strip():
            sys.stderr.write(f"{printable(words.strip())}\n")
    return [_answer(printable(prompt), echo) for prompt, echo in prompts]


def _answer(prompt: str, echo: bool) -> str:
    if not echo:
        return getpass.getpass(prompt)
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n")


def _fingerprint(key: Any) -> str:
    return str(key.fingerprint)
