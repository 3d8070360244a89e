"""Sessions as jobs of Slurm: on a node, reached by its socket alone, and gone with their job."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until

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
    argv = [sys.executable, "-P", "-m", "workflow.commands.main", "session", words[0], "--site", str(cluster.site_file), *words[1:]]
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
    wait_until(lambda: has_ended(cluster, said), 60.0, "the session has ended")
    wait_until(lambda: not cluster.exec(node, ["pgrep", "-f", "stand_in.py"], timeout=60).stdout, 30.0, "its program is gone")
    assert not (Path(session["directory"]) / "token").exists()
    slipway(cluster, "run", "--", "true")
