"""A controller that is away in the middle of a study on a real Slurm, for seconds."""

import contextlib
import json
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.workflow.run.valid import validate_record

pytestmark = [pytest.mark.slow, pytest.mark.long]
RUNS = 6
SILENT_S = 40.0
RUN_S = 120.0
"""A run takes at most so long on a machine on which much else is done."""
STUDY = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 28, shards: 2}}
base: {{dataset: digits, model: lenet, batch_size: 16, steps: {{warmup: 2, measured: 20}}, repeats: {repeats}}}
axes: {{nodes: [1, 2]}}
baseline: {{nodes: 1}}
limits: {{walltime: 10m, init: 60s}}
"""


@pytest.mark.parametrize("words", [("run",), ("submit", "--wait")], ids=["jobs", "allocation"])
@pytest.mark.parametrize(("fault", "heal"), [("stop", "cont"), ("kill", "start")])
def test_all_runs_have_one_result_and_none_has_two(cluster: Cluster, words: tuple[str, ...], fault: str, heal: str) -> None:
    """A controller that was killed has forgotten its last seconds: it holds a node for a job that is over until it asks the node again,
    after some minutes."""
    name = f"patience-{words[0]}-{fault}"
    file, log, results = cluster.shared / f"{name}.yaml", cluster.shared / f"{name}.log", cluster.shared / "slipway" / "results" / name
    file.write_text(STUDY.format(name=name, repeats=RUNS // 2))
    argv = ["slipway", words[0], str(file), "--site", str(cluster.site_file), *words[1:]]

    def records() -> list[Path]:
        return list(results.glob("runs/*/record.json"))

    with log.open("wb") as output:
        process = cluster.popen("login", argv, cwd=cluster.shared, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            wait_until(lambda: process.poll() is not None or len(records()) >= RUNS // 3, RUNS * RUN_S, "a third of the runs")
            cluster.ctld(fault)
            try:
                time.sleep(SILENT_S)  # what is tested: nobody answers for so long
            finally:
                cluster.ctld(heal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(RUNS * RUN_S)
            queue = cluster.exec("login", ["squeue", "--format=%i %j %T %r"]).stdout
        finally:
            process.terminate()
            process.wait()
    logs = [log, *sorted(results.glob("logs/snakemake-*.log"))]
    said = "".join(path.read_text(errors="replace") for path in logs) + queue
    assert process.returncode == 0, said[-6000:]
    for path in records():
        validate_record(json.loads(path.read_text()), str(path))
    assert [json.loads(path.read_text())["status"] for path in records()] == ["ok"] * RUNS
    attempts = [(path.parents[2].name, json.loads(path.read_text())["kind"]) for path in results.glob("runs/*/attempts/[!.]*/record.json")]
    counts = Counter(run for run, kind in attempts if kind == "result")
    assert sorted(counts.values()) == [1] * RUNS, "a run has two results, or none"
    assert "does not answer" in said
