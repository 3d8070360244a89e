"""Doctor, sessions and endings of runs where jobs are those of Grid Engine, OpenPBS or OpenLava."""

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import images
from tests.minicluster import Cluster, missing_here
from tests.minicluster.spec import USER
from tests.minicluster.studies import slipway
from tests.minicluster.waiting import wait_until
from tests.schedulers import LONG, on
from tests.slurm.test_sessions import ASK, STAND_IN

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PORT = "17500"
ANOTHER_WAY = {"pbs": (("-I", "--"), ("-V", "-W", "block=true", "--"))}
"""The words to leave out of the command that doctor prints, and those in their place: an interactive job of PBS needs a terminal."""


@on("sge", "pbs")
def test_doctor_on_the_login_node_and_by_the_command_that_it_prints_on_both_nodes_of_a_job(cluster: Cluster) -> None:
    outside = slipway(cluster, "doctor")
    assert outside.returncode == 0, outside
    (line,) = [line for line in outside.stdout.splitlines() if line.endswith(f"doctor --site {cluster.site_file}")]
    words = shlex.split(line)
    end = words.index("doctor") - 1
    report, script = cluster.shared / "doctor.json", cluster.shared / "doctor.sh"
    own = shlex.join([sys.executable, "-m", "workflow.commands.main", *words[end + 1 :], "--json"])
    script.write_text(f"cd {cluster.spec.home} && PYTHONPATH={ROOT} exec {own} > {report}\n")
    report.touch()
    report.chmod(0o666)
    without, more = ANOTHER_WAY.get(cluster.spec.scheduler, ((), ()))
    argv = [*(word for word in words[:end] if word not in without), *more, "/bin/sh", str(script)]
    done = cluster.exec("login", argv, user=USER, cwd=cluster.spec.home, timeout=200)
    found: dict[str, Any] = json.loads(report.read_text() or "{}")
    assert len(found.get("nodes", ())) == 2, (found, done)
    assert not [finding["text"] for finding in found["findings"] if finding["level"] == "error"]
    (started,) = [finding for finding in found["findings"] if "the nodes start our Python" in finding["text"]]
    assert sorted(started["nodes"]) == sorted(found["nodes"])


def serve(cluster: Cluster) -> dict[str, Any]:
    """Start a server, and return it as `ls` has it for programs."""
    site = ("--site", str(cluster.site_file))
    words = ("session", "serve", *site, "--ports", PORT, "--gpus", "0", "--time", "10m", "--", sys.executable, str(STAND_IN), PORT)
    done = cluster.exec("login", ["slipway", *words], user=USER, cwd=cluster.spec.home, timeout=200)
    assert done.returncode == 0, done
    return next(one for one in sessions(cluster) if f"session {one['session']}: job" in done.stdout)


def sessions(cluster: Cluster) -> list[dict[str, Any]]:
    done = slipway(cluster, "session", "ls", "--json")
    assert done.returncode == 0, done
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def stage(cluster: Cluster, session: dict[str, Any]) -> str:
    return str(next(one["stage"] for one in sessions(cluster) if one["session"] == session["session"]))


def ask(cluster: Cluster, session: dict[str, Any], user: str, *token: str) -> str:
    """Return how a request at the socket ends."""
    argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "/usr/bin/python3", "-c", ASK]
    return cluster.exec(session["node"], [*argv, "socket", session["sockets"][0], *token], timeout=60).stdout.strip()


def programs(cluster: Cluster) -> list[str]:
    argv = ["pgrep", "-a", "-u", USER, "-f", "stand_in.py|extras.session|workflow.run"]
    return [line for node in cluster.nodes for line in cluster.exec(node, argv, timeout=60).stdout.splitlines()]


@on("sge", "pbs")
def test_a_server_is_its_users_alone_and_ends_by_stop_and_by_qdel(cluster: Cluster) -> None:
    session = serve(cluster)
    token = (Path(session["directory"]) / "token").read_text()
    assert ask(cluster, session, USER, token) == "HTTP/1.1 200 OK"
    assert ask(cluster, session, USER) == "HTTP/1.1 403 Forbidden"
    assert ask(cluster, session, "65534", token) == "PermissionError"
    stopped = slipway(cluster, "session", "stop", session["session"])
    assert "it was stopped" in stopped.stdout, stopped
    wait_until(lambda: not programs(cluster), 60.0, "nothing of it is left")

    session = serve(cluster)
    cluster.exec("login", ["qdel", session["job_id"]], user=USER, timeout=60, check=True)
    wait_until(lambda: not programs(cluster) and stage(cluster, session) == "ended", 120.0, "it has ended, and nothing of it is left")
    assert not (Path(session["directory"]) / "token").exists()


@LONG
@pytest.mark.parametrize(("scheduler", "kinds"), [("pbs", ("walltime", "cancel")), ("lsf", ("cancel", "node program"))])
def test_a_few_endings_of_runs_in_containers_are_told_apart_and_leave_nothing(scheduler: str, kinds: tuple[str, ...]) -> None:
    """PBS's walltime ends the parent of the supervisor too, and bkill the launchers of node programs, maybe before the supervisor: the
    record says `timeout` and `cancelled` nevertheless. Each on a cluster of its own, by `python -m tests.endings`."""
    if reason := missing_here(docker=True, scheduler=scheduler) or images.missing_here():
        pytest.skip(reason)
    num = str(len(kinds))
    words = ["--scheduler", scheduler, "--only", *kinds, "--endings", num, "--seed", str(random.randrange(1 << 20))]
    argv = [sys.executable, "-m", "tests.endings", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done
    assert f"{num} of {num} right" in done.stdout
