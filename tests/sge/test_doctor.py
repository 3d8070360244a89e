"""`slipway doctor` on Grid Engine: on the login node, and by the command that it prints there, inside a job on both nodes."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.sge.conftest import USER
from tests.sge.test_studies import ROOT, slipway

pytestmark = pytest.mark.slow


def test_on_the_login_node_and_on_both_nodes_of_a_job(cluster: Cluster) -> None:
    doctor_inside(cluster)


def doctor_inside(cluster: Cluster, without: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> None:
    """Run the command that the doctor prints on the login node, `without` some words and with `more`."""
    site = str(cluster.site_file)
    outside = slipway(cluster, "doctor", "--site", site)
    assert outside.returncode == 0, outside
    (line,) = [line for line in outside.stdout.splitlines() if line.endswith(f"doctor --site {site}")]
    words = shlex.split(line)
    end = words.index("doctor") - 1
    report, script = cluster.shared / "doctor.json", cluster.shared / "doctor.sh"
    own = shlex.join([sys.executable, "-m", "workflow.commands.main", *words[end + 1 :], "--json"])
    script.write_text(f"cd {cluster.spec.home} && PYTHONPATH={ROOT} exec {own} > {report}\n")
    report.touch()
    report.chmod(0o666)
    argv = [*(word for word in words[:end] if word not in without), *more, "/bin/sh", str(script)]
    done = cluster.exec("login", argv, user=USER, cwd=cluster.spec.home, timeout=200)
    found: dict[str, Any] = json.loads(report.read_text() or "{}")
    assert len(found.get("nodes", ())) == 2, (found, done)
    assert not [finding["text"] for finding in found["findings"] if finding["level"] == "error"]
    (started,) = [finding for finding in found["findings"] if "the nodes start our Python" in finding["text"]]
    assert sorted(started["nodes"]) == sorted(found["nodes"])
