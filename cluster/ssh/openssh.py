"""The user's own `ssh`, with a private master connection that all commands of one host share."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from base import command
from base.errors import LineCut, RemoteError
from base.trusted import trusted_directory
from cluster.ssh import Sink
from cluster.ssh.limits import ALIVE_COUNT, ALIVE_S, ASK_S, CONNECT_S, MUX_S, PERSIST_S
from cluster.ssh.refusals import advice_on, is_lost, needs_person
from cluster.ssh.words import After, remote_line

FAILED: Final = 255
"""What ssh ends with when the line, and not the program, is at fault; no command of ours does."""
BLOCK: Final = 1 << 16
LONGEST_RUNTIME: Final = 32
"""Characters of a runtime directory with which the path of a socket stays below 108: `%C` and ssh add 58, we 12."""


class OpenSsh:
    """See Transport."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._directory: Path | None = None

    def connect(self, *, ask: bool) -> None:
        """Open the master connection unless it is: silently where keys and agent suffice, else with a person."""
        if self._is_open():
            return
        code, said = self._open(["-o", "BatchMode=yes"], None, CONNECT_S * 2)
        if code == 0:
            return
        can_ask = ask and (sys.stdin.isatty() or os.environ.get("SSH_ASKPASS_REQUIRE") == "force")
        if needs_person(said) and can_ask:
            code, said = self._open([], sys.stdin if sys.stdin.isatty() else None, ASK_S)
        if code:
            raise (LineCut if is_lost(said) else RemoteError)(advice_on(self.host, said))

    def stream(self, argv: Sequence[str], out: Sink, err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        """See Transport."""
        self.connect(ask=False)
        word = f"slipway-{secrets.token_hex(8)}"
        line = self._argv("-T", *([] if stdin else ["-n"]), "-o", "BatchMode=yes", "--", self.host, remote_line(argv, word))
        given = stdin if stdin is not None else subprocess.DEVNULL
        process = subprocess.Popen(line, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        after = (After(word), After(word))
        try:
            self._pass_on(process, ((after[0], out), (after[1], err)), limit_s, argv)
            code = process.wait()
        finally:
            _end(process)
        said = (after[1].noise + b"\n" + after[0].noise).decode(errors="replace").strip()
        if code == FAILED:
            is_cut = after[0].seen or not said or is_lost(said)
            words = f"the line to {self.host} was cut" if after[0].seen or not said else advice_on(self.host, said)
            raise (LineCut if is_cut else RemoteError)(words)
        if not after[0].seen:
            raise RemoteError(
                f"the login shell of {self.host} ended with {code} before {argv[0]} began; it said:\n{command.last_lines(said)}"
            )
        return code

    def _pass_on(
        self, process: subprocess.Popen[bytes], sinks: tuple[tuple[After, Sink], ...], limit_s: float | None, argv: Sequence[str]
    ) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        with selectors.DefaultSelector() as waiting:
            for stream, sink in zip((process.stdout, process.stderr), sinks, strict=True):
                if stream is not None:
                    waiting.register(stream, selectors.EVENT_READ, sink)
            while waiting.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RemoteError(f"{argv[0]} on {self.host} did not end within {limit_s:g} s")
                for key, _ in waiting.select(left):
                    data = os.read(key.fd, BLOCK)
                    if not data:
                        waiting.unregister(key.fileobj)
                        continue
                    after, sink = key.data
                    if rest := after.take(data):
                        sink(rest)

    def close(self) -> None:
        """Nothing: the master stays for the next command, at most PERSIST_S."""

    def hang_up(self) -> bool:
        """End the master connection; False where there was none."""
        return self._is_open() and self._asked("-O", "exit", "--", self.host).returncode == 0

    def _is_open(self) -> bool:
        return self._asked("-O", "check", "--", self.host).returncode == 0

    def _asked(self, *words: str) -> command.CommandResult:
        return command.run(self._argv(*words), timeout_s=MUX_S)

    def _open(self, words: Sequence[str], stdin: IO[str] | None, limit_s: float) -> tuple[int, str]:
        """(exit code, what ssh said) of an attempt. What a person is asked goes to the terminal by itself; all else is told if it fails."""
        argv = self._argv("-f", "-N", "-M", *words, "--", self.host)
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(argv, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = FAILED
                said.write(f"Connection timed out after {limit_s:g} s\n".encode())
            finally:
                _end(process)
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
        """A directory of ours alone."""
        if self._directory is None:
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            place = Path(runtime, "slipway-ssh") if runtime and len(runtime) < LONGEST_RUNTIME else Path(f"/tmp/slipway-ssh-{os.getuid()}")
            self._directory = trusted_directory(place)
        return self._directory


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
