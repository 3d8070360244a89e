"""Agent and node of the launcher mpirun: only one who knows the key of the run has words run, and how they end is told."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import held_ports

LIB = Path(__file__).parents[2] / "containers" / "lib"
SCRIPT = LIB / "slipway_mpi.py"
PATIENCE_S = 60.0
KEY = "11" * 32


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(str(LIB))
    monkeypatch.setenv("SLIPWAY_MPI_KEY", KEY)
    import slipway_mpi

    yield slipway_mpi
    del sys.modules["slipway_mpi"]


@pytest.mark.parametrize(
    ("key", "size", "words"),
    [("22" * 32, None, "does not know the key"), (KEY, 1 << 31, "announces 2147483648 bytes"), (KEY, 100, "has hung up")],
)
def test_who_does_not_prove_itself_has_nothing_run(mpi: object, key: str, size: int | None, words: str) -> None:
    ours, theirs = socket.socketpair()
    body = b'["touch", "/nowhere"]'

    def stranger() -> None:
        import hashlib
        import hmac

        nonce, own = theirs.recv(32), bytes(32)
        proof = hmac.new(bytes.fromhex(key), b"agent" + nonce + own + body, hashlib.sha256).digest()
        theirs.sendall(own + (len(body) if size is None else size).to_bytes(4, "big") + body + proof)
        theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=stranger)
    thread.start()
    with pytest.raises((OSError, ValueError), match=words):
        mpi.words_of(ours)  # type: ignore[attr-defined]
    thread.join()
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)  # it learns nothing that needs the key
    ours.close()
    theirs.close()


def started(place: Path, port: int, *words: str, **variables: str) -> subprocess.Popen[str]:
    env = {
        "PATH": os.environ["PATH"],
        "SLIPWAY_OUT": str(place),
        "SLIPWAY_MPI_KEY": KEY,
        "SLIPWAY_MPI_NODES": f"127.0.0.1:{port}",
        "SLIPWAY_NODE_RANK": "0",
        "SLURM_JOB_ID": "7",
        **variables,
    }
    argv = [sys.executable, str(SCRIPT), *words]
    return subprocess.Popen(argv, env=env, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "code", "node_code"), [("exit 3", 3, 3), ("echo $SLIPWAY_MPI_NODES:$SLURM_JOB_ID:", 0, 0), ("kill -9 $$", 137, -9)]
)
def test_the_words_of_an_agent_run_on_its_node(tmp_path: Path, text: str, code: int, node_code: int) -> None:
    (port,) = held_ports()
    node = started(tmp_path, port, "node")
    stranger = started(tmp_path, port, "agent", "slipway-node-0", "touch", str(tmp_path / "touched"), SLIPWAY_MPI_KEY="22" * 32)
    assert node.stderr is not None
    said = node.stderr.readline()
    stranger.kill()  # it would go on asking: one who hangs up may have had no room for it
    stranger.communicate()
    agent = started(tmp_path, port, "agent", "slipway-node-0", text)
    agent.communicate(timeout=PATIENCE_S)
    output, _ = node.communicate(timeout=PATIENCE_S)
    assert (agent.returncode, node.returncode) == (code, node_code)
    assert "one who is none of this run has connected: it does not know the key" in said
    assert not (tmp_path / "touched").exists()
    if code == 0:
        assert output == f"127.0.0.1:{port}::\n"


@pytest.mark.processes
def test_strangers_who_say_nothing_keep_no_agent_out(tmp_path: Path) -> None:
    (port,) = held_ports()
    node = started(tmp_path, port, "node")
    until = time.monotonic() + PATIENCE_S
    crowd: list[socket.socket] = []
    while len(crowd) < 40:
        try:
            crowd.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        except ConnectionRefusedError:
            assert time.monotonic() < until
    agent = started(tmp_path, port, "agent", "slipway-node-0", "exit 3")
    try:
        agent.communicate(timeout=PATIENCE_S)
        node.communicate(timeout=PATIENCE_S)
    finally:
        for stranger in crowd:
            stranger.close()
        for process in (agent, node):
            process.kill()
            process.wait()
    assert (agent.returncode, node.returncode) == (3, 3)


@pytest.mark.processes
def test_nothing_is_looked_up_between_fork_and_exec(mpi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ends beside the fork may be loading a library, in the middle of which the child is a copy."""

    def refused(*_: object) -> None:
        raise AssertionError("a library is loaded in the child")

    monkeypatch.setattr(mpi.ctypes, "CDLL", refused)
    parent = os.getpid()
    assert subprocess.Popen(["true"], preexec_fn=lambda: mpi.die_with_parent(parent)).wait() == 0


@pytest.mark.processes
def test_an_mpi_that_it_does_not_know_is_refused_with_its_words(tmp_path: Path) -> None:
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho 'HYDRA build details: Version 4.0'\n")
    other.chmod(0o755)
    refused = started(tmp_path, 1, "mpirun", str(other), "x")
    assert "works with Open MPI 4, and" in refused.communicate(timeout=PATIENCE_S)[1]
    assert refused.returncode == 127
    absent = started(tmp_path, 1, "mpirun", str(tmp_path / "nowhere"), "x")
    assert "nowhere cannot be started: No such file" in absent.communicate(timeout=PATIENCE_S)[1]
