"""A study on a real cluster, through Snakemake, by a checkout of its own on shared storage."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from containers.spec import TAG
from tests.checkout import copy_checkout
from tests.minicluster import Cluster
from tests.workflow.run.valid import validate_record


class Place:
    """A checkout on the cluster's shared storage, with one study that runs in an engine, or in none (`bare`)."""

    def __init__(self, cluster: Cluster, engine: str, name: str, study: Callable[[str], str]) -> None:
        """`study`: its name -> the text of its file."""
        self.cluster, self.engine, self.name = cluster, engine, f"{name}-{engine}"
        self.root = cluster.shared / f"checkout-{self.name}"
        self.root.mkdir()
        copy_checkout(self.root)
        (self.root / "study.yaml").write_text(study(self.name))
        (self.root / "site.yaml").write_text(cluster.site_file.read_text().replace("engine: bare", f"engine: {engine}"))
        self.results = cluster.shared / "slipway" / "results" / self.name

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """On the login node, with the checkout's own modules."""
        words = [sys.executable, "-m", *argv]
        return self.cluster.exec("login", words, cwd=self.root, env={"PYTHONPATH": str(self.root)}, timeout=1800)

    def snakemake(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = ["--profile", "profiles/slurm", "--configfile", "study.yaml", "--config", "site=./site.yaml"]
        return self.command("snakemake", *argv, *words)

    def records(self) -> list[dict[str, Any]]:
        """Of runs that all ended well, after which no container of theirs is left on any node."""
        done = self.snakemake()
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        records = [json.loads(path.read_text()) for path in self.results.glob("runs/*/record.json")]
        ends = {record["run_id"]: (record["status"], record["status_reason"], record["engine"]) for record in records}
        assert set(ends.values()) == {("ok", None, self.engine)}, ends
        for record in records:
            validate_record(record)
        assert "rule image" not in self.snakemake("-n").stdout
        for node in self.cluster.nodes if self.engine != "bare" else ():
            argv = [self.engine, "ps", "--all", "--quiet", "--filter", f"label={TAG}"]
            assert self.cluster.exec(node, argv, timeout=60).stdout == ""
        return records
