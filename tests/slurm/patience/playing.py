"""One study of many runs on a real Slurm, whose controller is away for a while in the middle of it; and what an observer then finds."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from workflow.run.record.reading import validate_record

ROOT: Final = Path(__file__).parents[3]
Way = Literal["jobs", "allocation"]
Fault = Literal["stop", "kill"]
VERBS: Final[Mapping[Way, tuple[str, ...]]] = {"jobs": ("run",), "allocation": ("submit", "--wait")}
HEALS: Final[Mapping[Fault, str]] = {"stop": "cont", "kill": "start"}
RUN_S: Final = 120.0
"""A run takes at most so long on a machine on which much else is done."""
STUDY: Final = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 28, shards: 2}}
base: {{dataset: digits, model: lenet, batch_size: 16, steps: {{warmup: 2, measured: 20}}, repeats: {repeats}}}
axes: {{nodes: [1, 2]}}
baseline: {{nodes: 1}}
limits: {{walltime: 10m, init: 60s}}
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an observer finds at the end. `results`: of each run, how many of its attempts are one. `jobs`: of each run, how many jobs
    left an exit code; empty where all runs had one. `before`, `after`: results when the controller went, and when it came back."""

    code: int
    said: str
    statuses: Counter[str]
    results: Mapping[str, int]
    attempts: int
    jobs: Mapping[str, int]
    before: int
    after: int
    seconds: float


class Study:
    """On that cluster; `runs` is even."""

    def __init__(self, cluster: Cluster, way: Way, fault: Fault, runs: int) -> None:
        self.cluster, self.way, self.fault, self.runs = cluster, way, fault, runs
        self.name = f"patience-{way}-{fault}"
        self.file = cluster.shared / f"{self.name}.yaml"
        self.file.write_text(STUDY.format(name=self.name, repeats=runs // 2))
        self.results = cluster.shared / "slipway" / "results" / self.name
        self.log = cluster.shared / f"{self.name}.log"

    def play(self, silent_s: float) -> Found:
        """The user's command; when a third of the runs have a result, the controller is away for so long."""
        began = time.monotonic()
        verb, *options = VERBS[self.way]
        argv = [str(ROOT / ".venv/bin/slipway"), verb, str(self.file), "--site", str(self.cluster.site_file), *options]
        with self.log.open("wb") as log:
            process = self.cluster.popen("login", argv, cwd=self.cluster.shared, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                wait_until(lambda: process.poll() is not None or self.done() >= self.runs // 3, self.runs * RUN_S, "a third of the runs")
                self.cluster.ctld(self.fault)
                before = self.done()
                try:
                    time.sleep(silent_s)  # what is tested: nobody answers for so long
                finally:
                    after = self.done()
                    self.cluster.ctld(HEALS[self.fault])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self.runs * RUN_S)
                queue = self.cluster.exec("login", ["squeue", "--format=%i %j %T %r"]).stdout
            finally:
                process.terminate()
                process.wait()
        return self.look(process.returncode, before, after, time.monotonic() - began, queue)

    def done(self) -> int:
        """Runs with a result."""
        return len(list(self.results.glob("runs/*/record.json")))

    def look(self, code: int, before: int, after: int, seconds: float, queue: str) -> Found:
        """At storage alone. A job leaves its exit code under a name of its own: the run's, a dot, and 8 digits by chance."""
        statuses: Counter[str] = Counter()
        results: Counter[str] = Counter()
        attempts = 0
        for path in self.results.glob("runs/*/record.json"):
            record = json.loads(path.read_text())
            validate_record(record, str(path))
            statuses[record["status"]] += 1
        for path in self.results.glob("runs/*/attempts/[!.]*/record.json"):
            attempts += 1
            if json.loads(path.read_text())["kind"] == "result":
                results[path.parents[2].name] += 1
        names = [path.name.rpartition(".")[0].rpartition(".")[0] for path in self.results.glob(".slipway/jobs/*.exit")]
        jobs = Counter(name for name in names if "-r" in name)
        logs = [path.read_text(errors="replace") for path in sorted(self.results.glob("logs/snakemake-*.log"))]
        said = "".join([self.log.read_text(errors="replace"), *logs, queue])
        return Found(
            code=code,
            said=said,
            statuses=statuses,
            results=results,
            attempts=attempts,
            jobs=jobs,
            before=before,
            after=after,
            seconds=seconds,
        )
