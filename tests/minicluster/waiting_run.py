"""A run on two nodes that waits for a file, and what can happen to it meanwhile, with any scheduler."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class WaitingRun:
    """A run whose two ranks wait until `go_on` exists, and the command that the user has typed."""

    place: Path
    results: Path
    command: subprocess.Popen[Any]

    @property
    def go_on(self) -> Path:
        return self.place / "go-on"

    def text(self) -> str:
        """Return what the command has printed, and the logs of the study."""
        return "".join(path.read_text() for path in (self.place / "said", *self.results.glob("logs/*.log")))

    def attempts(self) -> list[dict[str, Any]]:
        """Return the records of all attempts, in order."""
        return [json.loads(path.read_text()) for path in sorted(self.results.glob("runs/*/attempts/[!.]*/record.json"))]


@contextmanager
def waiting_run(cluster: Cluster, name: str, *words: str) -> Iterator[WaitingRun]:
    """Type `slipway WORDS STUDY` as the user of a cluster, wait until both ranks wait, and end the command at the end."""
    user, place = queue.words_of(cluster).user, cluster.spec.home / name
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
        yield WaitingRun(place=place, results=cluster.shared / "slipway" / "results" / name, command=command)
    finally:
        command.terminate()
        command.wait()


def lose_a_node_and_train_there_again(cluster: Cluster, *words: str) -> None:
    """Kill the node program of a run's first node, where its next attempt has no other nodes: it takes that one last. `words`: of the
    command that starts the study."""
    with waiting_run(cluster, f"again{words[0]}", *words) as run:
        (lost,) = (node for node in cluster.nodes if cluster.exec(node, ["pgrep", "-f", " -m workflow.run.supervisor"], timeout=60).stdout)
        cluster.exec(lost, ["pkill", "-KILL", "-f", "^[^ ]*python[^ ]* -P -m workflow.run.node "], timeout=60, check=True)
        run.go_on.touch()
        code = run.command.wait(LIMIT_S)
    found = [(attempt["status"], attempt["failed_nodes"]) for attempt in run.attempts()]
    assert (code, found) == (0, [("node_lost", [lost]), ("ok", [])]), run.text()
    first, second = ([node["name"] for node in attempt["nodes"]] for attempt in run.attempts())
    assert (len(second), set(second), second[-1]) == (2, set(first), lost), run.text()
