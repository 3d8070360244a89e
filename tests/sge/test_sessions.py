"""Sessions as jobs of Grid Engine: started, listed, stopped, killed by qdel, and nothing left of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.sge.conftest import USER
from tests.sge.test_studies import slipway
from tests.slurm.test_sessions import ASK, STAND_IN

pytestmark = pytest.mark.slow
PORT = "17500"


def serve(cluster: Cluster) -> dict[str, Any]:
    """A server that answers, as `ls` has it for programs."""
    words = ("serve", "--ports", PORT, "--gpus", "0", "--time", "10m", "--", sys.executable, str(STAND_IN), PORT)
    done = slipway(cluster, "session", words[0], "--site", str(cluster.site_file), *words[1:])
    assert done.returncode == 0, done
    return next(one for one in listed(cluster) if f"session {one['session']}: job" in done.stdout)


def listed(cluster: Cluster) -> list[dict[str, Any]]:
    done = slipway(cluster, "session", "ls", "--json", "--site", str(cluster.site_file))
    assert done.returncode == 0, done
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def stage(cluster: Cluster, session: dict[str, Any]) -> str:
    return str(next(one["stage"] for one in listed(cluster) if one["session"] == session["session"]))


def ask(cluster: Cluster, session: dict[str, Any], user: str, *token: str) -> str:
    """How a request at the socket ends."""
    argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "/usr/bin/python3", "-c", ASK]
    return cluster.exec(session["node"], [*argv, "socket", session["sockets"][0], *token], timeout=60).stdout.strip()


def programs(cluster: Cluster) -> list[str]:
    argv = ["pgrep", "-a", "-u", USER, "-f", "stand_in.py|extras.session|workflow.run"]
    return [line for node in cluster.nodes for line in cluster.exec(node, argv, timeout=60).stdout.splitlines()]


def test_a_server_is_its_users_alone_and_ends_by_stop_and_by_qdel(cluster: Cluster) -> None:
    serve_and_end(cluster)


def serve_and_end(cluster: Cluster) -> None:
    """On a cluster whose jobs are cancelled by qdel."""
    session = serve(cluster)
    token = (Path(session["directory"]) / "token").read_text()
    assert ask(cluster, session, USER, token) == "HTTP/1.1 200 OK"
    assert ask(cluster, session, USER) == "HTTP/1.1 403 Forbidden"
    assert ask(cluster, session, "65534", token) == "PermissionError"
    stopped = slipway(cluster, "session", "stop", session["session"], "--site", str(cluster.site_file))
    assert "it was stopped" in stopped.stdout, stopped
    wait_until(lambda: not programs(cluster), 60.0, "nothing of it is left")

    session = serve(cluster)
    cluster.exec("login", ["qdel", session["job_id"]], user=USER, timeout=60, check=True)
    wait_until(lambda: stage(cluster, session) == "ended" and not programs(cluster), 120.0, "it has ended, and nothing of it is left")
    assert not (Path(session["directory"]) / "token").exists()
