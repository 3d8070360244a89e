"""A shell of a session, from the server of its terminals to ours."""

import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from base.process import CODE_ROOT
from extras.session.attach import NO_SESSION
from tests.minicluster.waiting import wait_until
from tests.terminal import LIMIT_S, Terminal

pytestmark = pytest.mark.processes
SERVE = "import slipway_terminal, sys, threading; sys.exit(slipway_terminal.serve(sys.argv[1], threading.Event()))"
PASTED = 10_000
PROMPT = r"[$#] "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "token").write_text("T")
    environ = {**os.environ, "SHELL": "/bin/sh", "PYTHONPATH": str(CODE_ROOT / "containers" / "lib")}
    with subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path)], env=environ) as process:
        wait_until((tmp_path / "s.sock").exists, LIMIT_S, "the server listens")
        yield process
        process.kill()


@pytest.fixture
def attached(server: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[Terminal]:
    terminal = attach(tmp_path)
    yield terminal
    terminal.close()


def attach(directory: Path) -> Terminal:
    argv = [sys.executable, "-P", "-m", "extras.session.attach", str(directory)]
    terminal = Terminal(partial(subprocess.Popen, argv, cwd=CODE_ROOT, preexec_fn=own_terminal))
    terminal.until(PROMPT)
    return terminal


def own_terminal() -> None:
    """That of its standard input: it is told of a new size."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def ask(directory: Path, **words: str) -> tuple[bytes, dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(LIMIT_S)
        link.connect(str(directory / "s.sock"))
        link.sendall(json.dumps(words).encode() + b"\n")
        answer = link.recv(1 << 16)
    return answer, json.loads(answer)


def test_what_is_pasted_while_the_window_is_resized_arrives_and_is_printed(attached: Terminal, tmp_path: Path) -> None:
    """More than a program takes before what it prints is read."""
    attached.type(f"stty -echo raw; echo 'now''.'; head -c {8 * PASTED} | tee {tmp_path}/pasted; stty sane; stty size; exit 3\n")
    attached.until(r"now\.\s+")
    pasting = threading.Thread(target=paste, args=(attached,), daemon=True)
    pasting.start()
    attached.until(f"{PASTED - 1:07d}\n")
    pasting.join(LIMIT_S)
    attached.until("29 80")
    assert attached.ended() == 3
    assert (tmp_path / "pasted").read_text() == "".join(f"{number:07d}\n" for number in range(PASTED))


def paste(terminal: Terminal) -> None:
    for number in range(PASTED):
        terminal.type(f"{number:07d}\n")
        if number % 1000 == 0:
            termios.tcsetwinsize(terminal._master, (20 + number // 1000, 80))


def test_the_session_ends_when_the_last_shell_is_left_and_not_when_a_connection_is_lost(
    server: subprocess.Popen[bytes], attached: Terminal, tmp_path: Path
) -> None:
    lost = attach(tmp_path)
    lost.type("echo pid=$$.\n")
    lost.until(r"pid=\d+\.")
    (pid,) = re.findall(r"pid=(\d+)\.", lost.said)
    assert ask(tmp_path, token="T", ask="status")[1]["open"] == 2
    lost.close()
    wait_until(lambda: not Path("/proc", pid).exists(), LIMIT_S, "its shell is hung up, and waited for")
    attached.type(f"mkfifo {tmp_path}/fifo; (trap '' HUP; read line < {tmp_path}/fifo) & exit 5\n")  # which holds the terminal
    assert attached.ended() == 5
    assert server.wait(LIMIT_S) == 0
    with (tmp_path / "fifo").open("w") as file:
        file.write("end\n")


def test_a_shell_is_left_although_a_program_of_it_prints(server: subprocess.Popen[bytes], attached: Terminal, tmp_path: Path) -> None:
    attached.type(f"(trap '' HUP; until [ -e {tmp_path}/end ]; do echo; sleep 0.05; done) & exit 5\n")
    try:
        assert attached._process.wait(10) == 5  # the server waits as long for the word that it was left
        assert server.wait(LIMIT_S) == 0
    finally:
        (tmp_path / "end").touch()


@pytest.mark.usefixtures("server")
def test_a_terminal_is_given_back_where_nobody_reads_what_the_shell_prints(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "extras.session.attach", str(tmp_path)]
    with subprocess.Popen(argv, cwd=CODE_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(b"echo\n")
        process.stdin.flush()
        try:
            assert process.wait(LIMIT_S) == NO_SESSION
        finally:
            process.kill()


def test_a_shell_has_its_exit_code_also_where_the_server_waits_no_longer_for_us(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("T")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.sock"))
        listener.listen()
        argv = [sys.executable, "-P", "-m", "extras.session.attach", str(tmp_path)]
        with subprocess.Popen(argv, cwd=CODE_ROOT, stdin=subprocess.DEVNULL) as process:
            client, _ = listener.accept()
            with client:
                client.makefile().readline()
                outer, inner = os.openpty()
                socket.send_fds(client, [b"{}\n"], [outer])
                client.sendall(b'{"code": 5}\n')
            os.close(outer)
            os.close(inner)
            assert process.wait(LIMIT_S) == 5


def test_all_terminals_show_the_notice(attached: Terminal, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("this session ends in 5m\n")
    (tmp_path / "new").rename(tmp_path / "notice")
    attached.until("slipway: this session ends in 5m")


def test_a_session_that_is_killed_has_ended(server: subprocess.Popen[bytes], attached: Terminal) -> None:
    server.send_signal(signal.SIGKILL)
    attached.until("the session has ended")
    assert attached.ended() == NO_SESSION


def test_who_has_no_token_or_gets_no_terminal_is_told_and_the_session_goes_on(server: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert ask(tmp_path, token="wrong")[1] == {"message": "the token is not that of this session", "code": 1}
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc", str(server.pid), "fd").iterdir()))
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (open_now + 1, limits[1]))  # that of the connection
    assert str(ask(tmp_path, token="T")[1]["message"]).startswith("no terminal is to be had here for a shell: ")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    attach(tmp_path).close()
