"""Sessions as jobs of Slurm: on a node, reached by its socket alone, and gone with their job."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import sshd
from tests.minicluster import Cluster, missing_here
from tests.minicluster.spec import USER, USER_ID
from tests.minicluster.waiting import wait_until
from tests.slurm.laptop import start_sshd
from tests.terminal import Terminal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "extras" / "session" / "stand_in.py"
ASK = """
import socket, sys
try:
    link = socket.create_connection((sys.argv[1], 17500), 5) if sys.argv[1] != "socket" else socket.socket(socket.AF_UNIX)
    if sys.argv[1] == "socket":
        link.connect(sys.argv[2])
    shown = f"Authorization: token {sys.argv[3]}\\r\\n" if sys.argv[3:] else ""
    link.sendall(f"GET / HTTP/1.1\\r\\nHost: x\\r\\n{shown}\\r\\n".encode())
    print(link.recv(100).split(b"\\r\\n")[0].decode())
except OSError as error:
    print(type(error).__name__)
"""


def slipway(cluster: Cluster, *words: str) -> str:
    """What `slipway session WORDS` says on the login node."""
    argv = ["slipway", "session", words[0], "--site", str(cluster.site_file), *words[1:]]
    found = cluster.exec("login", argv, timeout=180)
    assert found.returncode == 0, found.stderr
    return found.stdout


def ask(cluster: Cluster, node: str, *words: str, nobody: bool = False) -> str:
    """How a request from there ends."""
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if nobody else []
    return cluster.exec(node, [*other, "/usr/bin/python3", "-c", ASK, *words], timeout=60).stdout.strip()


def session_of(cluster: Cluster, said: str) -> dict[str, Any]:
    """The one that `said` tells the start of, as `ls` has it for programs."""
    found: list[dict[str, Any]] = json.loads(slipway(cluster, "ls", "--json"))
    return next(one for one in found if said.startswith(f"session {one['session']}: "))


def has_ended(cluster: Cluster, said: str) -> bool:
    return bool(session_of(cluster, said)["stage"] == "ended")


def test_a_server_on_a_node_is_there_for_its_user_alone_and_goes_with_its_job(cluster: Cluster) -> None:
    said = slipway(cluster, "serve", "--ports", "17500", "--time", "10m", "--", sys.executable, str(STAND_IN), "17500")
    session = session_of(cluster, said)
    node, path = session["node"], session["sockets"][0]
    token = (Path(session["directory"]) / "token").read_text()
    assert f"{path} -J login {node}" in said
    assert session["deadline"] is not None
    assert ask(cluster, node, "socket", path, token) == "HTTP/1.1 200 OK"
    assert ask(cluster, node, "socket", path) == "HTTP/1.1 403 Forbidden"
    assert ask(cluster, node, "socket", path, nobody=True) == "PermissionError"
    assert ask(cluster, node, "127.0.0.1") == "ConnectionRefusedError"
    assert ask(cluster, "login", node) == "ConnectionRefusedError"
    waits = slipway(cluster, "run", "--detach", "--nodes", "3", "--", "true")  # one node is taken
    assert "cancelled before it had begun" in slipway(cluster, "stop", session_of(cluster, waits)["session"])
    slipway(cluster, "stop", "--now", session["session"])
    wait_until(lambda: not cluster.exec(node, ["pgrep", "-f", "stand_in.py"], timeout=60).stdout, 60.0, "its program is gone")
    wait_until(lambda: has_ended(cluster, said), 60.0, "the session has ended")
    assert not (Path(session["directory"]) / "token").exists()
    slipway(cluster, "run", "--", "true")


@pytest.fixture
def reached_by_ssh() -> Iterator[Cluster]:
    """A cluster whose ordinary user goes from host to host by a key."""
    if reason := missing_here() or sshd.missing():
        pytest.skip(reason)
    with Cluster.up(f"ssh{os.getpid()}", nodes=2, gpus=2, cores=4, for_users=True) as cluster:
        own, known = cluster.spec.home / ".ssh", []
        own.mkdir(mode=0o700)
        sshd.keygen(own / "id_ed25519")
        with ExitStack() as servers:
            for node in cluster.nodes:
                directory = cluster.spec.shared / "sshd" / node
                directory.mkdir(parents=True)
                shutil.copy(own / "id_ed25519.pub", directory / "authorized_keys")
                host = sshd.Host(name=node, address=node, directory=directory, home=cluster.spec.home)
                host.shell(path=cluster.env["PATH"])
                server = start_sshd(cluster, node, host)
                servers.callback(server.wait)
                servers.callback(server.terminate)
                known.append(host.known_line())
            (own / "known_hosts").write_text("".join(known))
            for path in (own, *own.iterdir()):
                shutil.chown(path, USER_ID, USER_ID)
            yield cluster


@pytest.mark.long
def test_a_shell_over_ssh_is_told_before_its_time_is_over(reached_by_ssh: Cluster) -> None:
    """Typed on the login node, in a terminal."""
    cluster = reached_by_ssh
    words = ["slipway", "session", "shell", "--time", "120s", "--gpus", "0", "--site", str(cluster.site_file)]
    terminal = Terminal(partial(cluster.popen, "login", words, user=USER, cwd=cluster.spec.home))
    try:
        terminal.until(r"\$ ")
        terminal.type("echo $((6*7)) on $(hostname)\n")
        terminal.until(r"42 on n\d")
        terminal.until("slipway: this session ends in ")
        terminal.type("exit 5\n")
        assert terminal.ended() == 5
    finally:
        terminal.close()
