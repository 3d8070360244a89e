"""`slipway doctor` on the real cluster: on the login node, inside an allocation, with a node that is dead."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from workflow.study.site_file import read_site

pytestmark = pytest.mark.slow


def slipway(cluster: Cluster, *words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return cluster.exec("login", [*before, "slipway", *words], timeout=200)


def doctor(cluster: Cluster, *before: str, site_file: Path | None = None) -> tuple[int, dict[str, Any]]:
    done = slipway(cluster, "doctor", "--site", str(site_file or cluster.spec.site_file), "--json", before=before)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def said(value: dict[str, Any], words: str) -> dict[str, Any]:
    found = [finding for finding in value["findings"] if words in finding["text"]]
    assert len(found) == 1, (words, value["findings"])
    return dict(found[0])


def test_on_the_login_node_by_a_site_file_that_it_has_written(cluster: Cluster) -> None:
    target = cluster.shared / "found.yaml"
    done = slipway(cluster, "doctor", "--write-site", str(target), before=("env", f"SCRATCH={cluster.shared}"))
    assert done.returncode == 0, done.stderr
    site = read_site(target)
    assert (site.scheduler, site.queue, site.gpus_per_node, site.cpus_per_node) == ("slurm", "main", 2, 4)
    assert (site.storage, site.cache.path) == (cluster.shared / "slipway", Path("/var/tmp/slipway-root"))
    assert site.device == "cuda"
    code, value = doctor(cluster, site_file=target)
    assert code == 0, [finding for finding in value["findings"] if finding["level"] == "error"]
    assert (value["host"], value["scheduler"], value["job_id"]) == ("login", "slurm", None)
    assert said(value, "main (default): 3 nodes of 4 cores")["level"] == "ok"
    assert not list(site.storage.parent.glob("**/.slipway-doctor*"))


def test_inside_an_allocation(cluster: Cluster) -> None:
    code, value = doctor(cluster, "salloc", "--nodes=2", "--nodelist=n1,n2", "--exclusive", "--gres=gpu:2", "--time=5")
    assert code == 0, [finding for finding in value["findings"] if finding["level"] == "error"]
    assert value["nodes"] == ["n1", "n2"]
    assert said(value, "the nodes see what is made on storage")["nodes"] == ["n1", "n2"]
    assert said(value, "the nodes start our Python")["nodes"] == ["n1", "n2"]
    assert said(value, "/local/slipway is local")["nodes"] == ["n1", "n2"]
    assert cluster.exec("n1", ["sh", "-c", "ls -A /local | grep -c doctor"]).stdout.strip() == "0"


def test_a_dead_node_of_the_allocation_is_named(cluster: Cluster) -> None:
    ready, go = cluster.shared / "ready", cluster.shared / "go"
    wait = f'touch {ready}; until [ -e {go} ]; do sleep 0.1; done; exec "$@"'
    words = ["slipway", "doctor", "--site", str(cluster.spec.site_file), "--json"]
    argv = ["salloc", "--no-kill", "--nodes=2", "--nodelist=n1,n3", "--time=5", "sh", "-c", wait, "sh", *words]
    process = cluster.popen("login", argv, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(ready.exists, 30, "the allocation")
        cluster.kill("n3")
        go.touch()
        out = process.communicate(timeout=150)[0]
    finally:
        process.kill()
        cluster.heal("n3")
    value = json.loads(out)
    assert said(value, "our Python did not start on n3")["level"] == "error"
    assert said(value, "/local/slipway is local")["nodes"] == ["n1"]
    assert process.returncode == 10
