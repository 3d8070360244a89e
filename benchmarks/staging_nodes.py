"""A dataset to all nodes of a mini-cluster, against one plain sequential read of it, `rsync` on every node at once, and `sbcast`.

    python -m tests.minicluster up --name bench --nodes 4 --storage-mbit 200 [--link-mbit 200]
    python -m benchmarks.staging_nodes --name bench [--size 512MB] [--shards 2] [--repeats 3] [--without rsync,sbcast]

All nodes read storage over one link, and run on this machine: choose --storage-mbit so low that the link is the bottleneck and not the
cores (the CPU column: seconds of all cores of this machine). Every contender begins without pages of the dataset on any node (each mount
has pages of its own; the server's are behind the link and change nothing) and without a copy; they take turns. Slipway is timed from the
start of `workflow.run.supervisor.stage_all_nodes` inside the allocation, srun, node programs and hashes included; `in` is the time of
the slowest node's staging process. Printed: medians, and the medians of the ratios to the plain read of the same turn.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from base.humanize import format_size, parse_size
from benchmarks.data.own import make_dataset
from data_prep.manifest import manifest_digest
from tests.minicluster.registry import directory_of
from tests.minicluster.spec import read_state
from workflow.run.storage.description import build_name
from workflow.study.publishing import publish_resolved
from workflow.study.study import load_study

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = Path("slipway", "results", "bench")


class Cluster:
    """Commands on its nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spec = read_state(directory_of(name))
        self.shared = self.spec.shared

    def run(self, host: str, script: str) -> str:
        argv = [sys.executable, "-m", "tests.minicluster", "exec", "--name", self.name, host, "bash", "-c", script]
        done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{host}: {script}\nended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def everywhere(self, script: str) -> None:
        for index in range(self.spec.nodes):
            self.run(f"n{index + 1}", script)
        self.run("login", script)

    def allocated(self, script: str) -> str:
        return self.run("login", f"salloc -Q --exclusive -N {self.spec.nodes} bash -c {shlex.quote(script)}")


def prepare(cluster: Cluster, num_bytes: int, shards: int) -> Path:
    """A published dataset, and a study that uses it."""
    place = cluster.shared / "slipway-bench"
    place.mkdir(exist_ok=True)
    (place / "site.yaml").write_text(
        f"{{storage: {cluster.shared / 'slipway'}, cache: {{path: /local/slipway}}, scheduler: slurm, queue: main, device: cpu}}\n"
    )
    (place / "study.yaml").write_text(
        "study: bench\ndatasets: {bench: {source: synthetic, size: 32, channels: grey}}\n"
        f"base: {{dataset: bench, model: lenet, batch_size: 1, nodes: {cluster.spec.nodes}, device: cpu, repeats: 1}}\n"
    )
    study = load_study(place / "study.yaml", str(place / "site.yaml"))
    source = make_dataset(study.datasets_dir, num_bytes, shards)
    receipt = {"name": "bench", "digest": manifest_digest(source), "path": source.name, "samples": shards, "bytes": size(source)}
    build = study.datasets_dir / ".build" / build_name(study.cells[0])
    build.mkdir(parents=True, exist_ok=True)
    (build / "dataset.json").write_text(json.dumps(receipt))
    publish_resolved(study)
    return source


def size(source: Path) -> int:
    return sum(path.stat().st_size for path in source.rglob("data.mdb"))


def files(source: Path) -> str:
    return shlex.join(str(path) for path in sorted(source.rglob("data.mdb")))


def plain_read(cluster: Cluster, source: Path) -> dict[str, Any]:
    script = f"date +%s.%N; for f in {files(source)}; do dd if=$f of=/dev/null bs=4M status=none; done; date +%s.%N"
    return timed(lambda: cluster.run("n1", script))


def slipway(cluster: Cluster, source: Path) -> dict[str, Any]:
    output = cluster.shared / RESULTS / "warm.json"
    results = cluster.shared / RESULTS
    stage = f"{sys.executable} -m workflow.run.supervisor.stage_all_nodes"
    script = f"cd {CHECKOUT} && {stage} --results {results} --dataset bench --output {output}"
    found = timed(lambda: cluster.allocated(f"date +%s.%N; {script} && date +%s.%N"))
    told = json.loads(output.read_text())
    read = sum(node["storage_bytes"] for node in told["nodes"])
    found["note"] = f"{read / size(source):.3f} x read from storage; in {max(node['seconds'] for node in told['nodes']):.2f} s"
    found["inner"] = max(node["seconds"] for node in told["nodes"])
    return found


def rsync(cluster: Cluster, source: Path) -> dict[str, Any]:
    script = f"mkdir -p /local/rsync && rsync -a {source} /local/rsync && sync -f /local/rsync"
    return timed(lambda: cluster.allocated(f"date +%s.%N; srun bash -c {shlex.quote(script)} && date +%s.%N"))


def sbcast(cluster: Cluster, source: Path) -> dict[str, Any]:
    lines = [f"sbcast -f {path} /local/sbcast-{number}.mdb" for number, path in enumerate(sorted(source.rglob("data.mdb")))]
    script = " && ".join([*lines, "srun sync -f /local"])
    return timed(lambda: cluster.allocated(f"date +%s.%N; {script} && date +%s.%N"))


def timed(work: Callable[[], str]) -> dict[str, Any]:
    """Seconds between the two dates it prints, else on our clock; CPU seconds of the whole machine."""
    cpu, start = busy_s(), time.perf_counter()
    said = [line for line in work().splitlines() if line.replace(".", "").isdigit()]
    seconds = float(said[-1]) - float(said[0]) if len(said) > 1 else time.perf_counter() - start
    return {"seconds": seconds, "cpu": busy_s() - cpu, "note": ""}


def busy_s() -> float:
    """Of all cores, since the start of the machine: all but idle and waiting."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


CONTENDERS: dict[str, Callable[[Cluster, Path], dict[str, Any]]] = {
    "plain read": plain_read, "slipway": slipway, "rsync": rsync, "sbcast": sbcast,
}  # fmt: skip


def clean(cluster: Cluster, source: Path) -> None:
    """No copies and no pages of it on any node."""
    forget = f"for f in {files(source)}; do dd if=$f iflag=nocache count=0 status=none; done"
    cluster.everywhere(f"rm -rf /local/slipway /local/rsync /local/sbcast-*; {forget}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the running mini-cluster")
    parser.add_argument("--size", type=parse_size, default=512 * 10**6)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without", default="", help="contenders to leave out, with commas")
    arguments = parser.parse_args()
    cluster = Cluster(arguments.name)
    source = prepare(cluster, arguments.size, arguments.shards)
    left_out = arguments.without.split(",")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS if name not in left_out}
    for _ in range(arguments.repeats):
        for name, rows in found.items():
            clean(cluster, source)
            rows.append(CONTENDERS[name](cluster, source))
            print(f"  {name}: {rows[-1]['seconds']:.2f} s {rows[-1]['note']}", flush=True)
    clean(cluster, source)
    speeds = f"storage {cluster.spec.storage_mbit} Mbit/s, links {cluster.spec.link_mbit} Mbit/s"
    print(f"{format_size(size(source))} to {cluster.spec.nodes} nodes, {speeds}, {os.cpu_count()} cores")
    print(f"{'':10} {'s':>7} {'MB/s':>7} {'CPU s':>6}  times the plain read")
    for name, rows in found.items():
        seconds = statistics.median(row["seconds"] for row in rows)
        ratio = statistics.median(row["seconds"] / plain["seconds"] for row, plain in zip(rows, found["plain read"], strict=True))
        cpu = statistics.median(row["cpu"] for row in rows)
        print(f"{name:10} {seconds:7.2f} {size(source) / seconds / 1e6:7.1f} {cpu:6.1f}  {ratio:.2f}")
    inner = statistics.median(row["inner"] / plain["seconds"] for row, plain in zip(found["slipway"], found["plain read"], strict=True))
    print(f"slipway without srun and the start of its programs: {inner:.2f} times the plain read")


if __name__ == "__main__":
    main()
