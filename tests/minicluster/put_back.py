"""A run on two nodes whose job an operator puts back into the queue in its last second, as any scheduler lets him."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.minicluster import queue
from tests.minicluster.cluster import Cluster
from tests.minicluster.waiting import wait_until

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
STUDY = """\
study: putback
programs:
  waits: {folder: program, command: [sh, "{folder}/waits.sh"], launcher: ranks, events: none}
base: {program: waits, dataset: none, batch_size: 1, device: cpu, nodes: 2, repeats: 1}
axes: {}
limits: {walltime: 5m}
"""
WAITS = "touch {place}/began-$(hostname)\nuntil test -e {place}/go-on; do sleep 0.1; done\n"


def run_put_back(cluster: Cluster) -> str:
    """What the user's command has said, and its Snakemake. By then all is as after any run: one attempt that is ok, and no job is left in
    the queue, which none is looked for in any more."""
    user, place = queue.words_of(cluster).user, cluster.spec.home / "putback"
    results = cluster.shared / "slipway" / "results" / "putback"
    (place / "program").mkdir(parents=True)
    (place / "program" / "waits.sh").write_text(WAITS.format(place=place))
    (place / "study.yaml").write_text(STUDY)
    if user is not None:
        for path in (place, *place.rglob("*")):
            shutil.chown(path, cluster.spec.home.stat().st_uid)
    argv = [str(ROOT / ".venv/bin/slipway"), "run", str(place / "study.yaml"), "--site", str(cluster.site_file)]
    with (place / "said").open("wb") as said:
        command = cluster.popen("login", argv, user=user, cwd=place, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_until(lambda: len(list(place.glob("began-*"))) == 2, LIMIT_S, "the run trains")
        (job,) = queue.listed(cluster)
        (place / "go-on").touch()
        wait_until(lambda: bool(list(results.glob("runs/*/record.json"))), LIMIT_S, "its record")
        queue.order(cluster, queue.words_of(cluster).requeue, job)
        code = command.wait(LIMIT_S)
    finally:
        command.terminate()
        command.wait()
    left = queue.listed(cluster)
    words = "".join(path.read_text() for path in (place / "said", *results.glob("logs/*.log")))
    attempts = [json.loads(path.read_text())["status"] for path in results.glob("runs/*/attempts/*/record.json")]
    assert (code, attempts, left) == (0, ["ok"], []), words
    return words
