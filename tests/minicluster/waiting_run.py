"""A run on two nodes that waits for a file, and what can happen to it meanwhile, with any scheduler."""

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
study: {name}
programs:
  waits: {{folder: program, command: [sh, "{{folder}}/waits.sh"], launcher: ranks, events: none}}
base: {{program: waits, dataset: none, batch_size: 1, device: cpu, nodes: 2, repeats: 1}}
axes: {{}}
limits: {{walltime: 5m}}
"""
WAITS = "touch {place}/began-$(hostname)\nuntil test -e {place}/go-on; do sleep 0.1; done\n"


def lose_a_node_and_train_there_again(cluster: Cluster, *words: str) -> None:
    """Kill the node program of a run's first node, where its next attempt has no other nodes: it takes that one last. `words`: of the
    command that starts the study, which is typed as the user of the cluster."""
    name = f"again{words[0]}"
    user, place, results = queue.words_of(cluster).user, cluster.spec.home / name, cluster.shared / "slipway" / "results" / name
    (place / "program").mkdir(parents=True)
    (place / "program" / "waits.sh").write_text(WAITS.format(place=place))
    (place / "study.yaml").write_text(STUDY.format(name=name))
    if user is not None:
        for path in (place, *place.rglob("*")):
            shutil.chown(path, cluster.spec.home.stat().st_uid)
    argv = [str(ROOT / ".venv/bin/slipway"), *words, str(place / "study.yaml"), "--site", str(cluster.site_file)]
    with (place / "said").open("wb") as said:
        command = cluster.popen("login", argv, user=user, cwd=place, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_until(lambda: len(list(place.glob("began-*"))) == 2, LIMIT_S, "the run trains")
        (lost,) = (node for node in cluster.nodes if cluster.exec(node, ["pgrep", "-f", " -m workflow.run.supervisor"], timeout=60).stdout)
        cluster.exec(lost, ["pkill", "-KILL", "-f", "^[^ ]*python[^ ]* -P -m workflow.run.node "], timeout=60, check=True)
        (place / "go-on").touch()
        code = command.wait(LIMIT_S)
    finally:
        command.terminate()
        command.wait()
    text = "".join(path.read_text() for path in (place / "said", *results.glob("logs/*.log")))
    attempts = [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/attempts/[!.]*/record.json"))]
    found = [(attempt["status"], attempt["failed_nodes"]) for attempt in attempts]
    assert (code, found) == (0, [("node_lost", [lost]), ("ok", [])]), text
    first, second = ([node["name"] for node in attempt["nodes"]] for attempt in attempts)
    assert (len(second), set(second), second[-1]) == (2, set(first), lost), text
