"""A terminal of a session: neither side waits for the other for ever."""

from __future__ import annotations

import json
import resource
import socket
import struct
import sys
import threading
from pathlib import Path

import pytest

from tests.minicluster.waiting import wait_until

sys.path.insert(0, str(Path(__file__).parents[2] / "containers" / "lib"))
try:
    import slipway_terminal
finally:
    sys.path.pop(0)

LIMIT_S = 60.0


@pytest.mark.processes
def test_more_is_typed_than_a_program_takes_before_what_it_prints_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    lines = b"".join(b"%060d\n" % number for number in range(5000))
    typed = b"stty -echo; cat\n" + lines + b"\x04exit 3\n"
    ours, its = socket.socketpair()
    shells = slipway_terminal.Shells()
    serving = threading.Thread(target=slipway_terminal.answer, args=(its, "T", str(tmp_path), shells, lambda: None), daemon=True)
    with ours:
        ours.settimeout(LIMIT_S)
        serving.start()
        ours.sendall(json.dumps({"token": "T"}).encode() + b"\n" + b"d" + struct.pack(">I", len(typed)) + typed)
        said = b""
        while piece := ours.recv(1 << 16):
            said += piece
    serving.join(LIMIT_S)
    assert said.endswith(slipway_terminal.frame(b"x", b"3"))
    assert len(said) > len(lines)
    assert shells.ended.is_set()


@pytest.mark.processes
def test_a_shell_whose_client_has_gone_leaves_no_zombie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    typed, pid_file = f"echo $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid\n".encode(), tmp_path / "pid"
    ours, its = socket.socketpair()
    shells = slipway_terminal.Shells()
    serving = threading.Thread(target=slipway_terminal.answer, args=(its, "T", str(tmp_path), shells, lambda: None), daemon=True)
    with ours:
        serving.start()
        ours.sendall(json.dumps({"token": "T"}).encode() + b"\n" + slipway_terminal.frame(b"d", typed))
        wait_until(pid_file.exists, LIMIT_S, "the shell tells its number")
    serving.join(LIMIT_S)
    shell = Path("/proc", pid_file.read_text().strip())
    wait_until(lambda: not shell.exists(), LIMIT_S, "the shell is gone, and waited for")
    assert not shells.ended.is_set()


@pytest.mark.processes
def test_who_gets_no_terminal_is_told_why_and_the_session_goes_on(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    shells = slipway_terminal.Shells()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours:
        ours.sendall(json.dumps({"token": "T"}).encode() + b"\n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # no descriptor is left for one
        try:
            slipway_terminal.answer(its, "T", str(tmp_path), shells, lambda: None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        said = ours.recv(1 << 16)
    assert b"no terminal is to be had here for a shell: " in said
    assert said.endswith(slipway_terminal.frame(b"x", b"1"))
    assert (shells.open, shells.ended.is_set()) == (0, False)
