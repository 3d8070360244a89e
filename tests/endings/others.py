"""Containers of others on every node, which must live through all that is done to ours: nobody's, another user's, another living job's."""

from __future__ import annotations

import time

from containers.engines import STORES
from containers.engines.cli import remove_argv
from containers.labels import JOB, TAG, USER
from tests import images
from tests.endings.place import Place
from tests.minicluster import queue

BACK_S = 60.0


class Others:
    """Per node three containers, known by id and by when they were started; and a job that runs all the time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.job = self._submit()
        labels = {
            "nobody": {},
            "user": {TAG: "theirs-r1-a1-00000000", JOB: f"{place.scheduler}:999999:0", USER: "12345"},
            "job": {TAG: "other-r1-a1-00000000", JOB: f"{place.scheduler}:{self.job}:0", USER: str(place.user_id)},
        }
        self.started: dict[str, dict[str, str]] = {}
        """Node -> id -> moment."""
        for node in place.cluster.nodes if place.engine in STORES else ():
            for name, values in labels.items():
                words = [word for label, value in values.items() for word in ("--label", f"{label}={value}")]
                restart = ["--restart", "always"] if place.engine == "docker" else []
                options = ["--detach", "--network", "host", *restart, *(["--init"] if restart else []), "--name", f"others-{name}", *words]
                place.told(node, "run", *options, images.BASE, "sleep", "100000")
            self.started[node] = self.look(node)

    def _submit(self) -> str:
        if self.place.scheduler != "slurm":
            return self.place.submit_as_user(self.place.cluster.spec.home, ["sleep", "100000"], self.place.cluster.nodes, 120, {})
        nodes = len(self.place.cluster.nodes)
        options = [f"--nodes={nodes}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=100", "--output=/dev/null"]
        done = self.place.cluster.exec("login", ["sbatch", "--parsable", *options, "--wrap", "exec sleep 100000"], check=True)
        return str(done.stdout.strip())

    def remove(self) -> None:
        """By id."""
        for node, found in self.started.items():
            self.place.told(node, *remove_argv(self.place.engine, "")[1:-1], *found)
        queue.order(self.place.cluster, self.place.words.cancel, self.job)

    @property
    def ids(self) -> set[str]:
        return {found for node in self.started.values() for found in node}

    def look(self, node: str) -> dict[str, str]:
        """Those that run there now."""
        ids = self.place.told(node, "ps", "--quiet", "--no-trunc", "--filter", "name=others-").split()
        if not ids:
            return {}
        told = self.place.told(node, "inspect", "--format", "{{.Id}} {{.State.Running}} {{.State.StartedAt}}", *ids)
        words = [line.split(" ", 2) for line in told.splitlines()]
        return {found: moment for found, running, moment in words if running == "true"}

    def wrong(self, restarted: str | None) -> list[str]:
        """Which are not as they were. On the node `restarted` dockerd has ended, and with it, without live-restore, all its containers:
        there they are the same containers, started again by the daemon."""
        found = []
        for node, before in self.started.items():
            now = self.look(node)
            give_up = time.monotonic() + BACK_S
            while node == restarted and set(now) != set(before) and time.monotonic() < give_up:
                time.sleep(0.3)
                now = self.look(node)
            if now != before and not (node == restarted and set(now) == set(before)):
                found.append(f"containers of others on {node}: {before} became {now}")
            if set(now) == set(before):
                self.started[node] = now
        return found
