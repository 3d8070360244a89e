"""The archive of an image to all nodes of a mini-cluster: read once and passed on, against every node reading it for itself.

    python -m benchmarks.image_nodes [--nodes 4] [--size 128MB] [--storage-mbit 200] [--repeats 3]

Starts a mini-cluster of its own, whose nodes read storage over one link; choose --storage-mbit so low that the link is the bottleneck and
not the cores. Whole runs in containers of the stand-in of apptainer, whose image is a file of random bytes; measured is `image_s` of the
slowest node in the record: from the start of the load to the answer of the engine. Without the list of its chunks every node reads the
archive for itself, as all did before. They take turns; printed are medians, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics

from base.chunks import chunks_path
from base.humanize import format_size, parse_size
from tests.containers.conftest import FAKES
from tests.minicluster import Cluster
from tests.slurm.test_scheduler import ClusterWorld
from tests.workflow.run.world import ROOT

PATH = f"{FAKES}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageWorld(ClusterWorld):
    """With a pinned image of a given size."""

    def __init__(self, cluster: Cluster, num_bytes: int) -> None:
        super().__init__(cluster, "images")
        image = self.path / "image.sif"
        with image.open("wb") as file:
            for _ in range(num_bytes >> 20):
                file.write(os.urandom(1 << 20))
        self.site |= {"engine": "apptainer", "images": {"fake": str(image)}, "setup": [f"export PATH={PATH}"]}
        self.cell(nodes=cluster.spec.nodes)
        done = cluster.exec("login", self.image_argv(), cwd=ROOT, timeout=600, env={"PYTHONPATH": str(ROOT), "PATH": PATH})
        if done.returncode:
            raise SystemExit(done.stderr)
        (self.archive,) = (self.storage / "images").glob("*.sif")

    def distribute(self) -> float:
        """Seconds of the slowest node."""
        for node in self.cluster.nodes:
            self.cluster.exec(node, ["rm", "-rf", self.site["cache"]["path"]], check=True)
            self.cluster.exec(node, ["dd", f"if={self.archive}", "iflag=nocache", "count=0", "status=none"], check=True)
        run_id, nodes = self.cell(nodes=self.cluster.spec.nodes), len(self.cluster.nodes)
        job = self.submit(self.script(f"exec {self.supervisor(run_id)}"), f"--nodes={nodes}", "--ntasks-per-node=1", "--time=10")
        if self.ended(job).state != "COMPLETED":
            raise SystemExit(self.log()[-4000:])
        return max(float(node["image_s"]) for node in self.record(run_id)["nodes"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--size", type=parse_size, default=128 * 10**6)
    parser.add_argument("--storage-mbit", type=float, default=200.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cluster = Cluster.up(f"image{os.getpid()}", nodes=options.nodes, gpus=0, cores=4, storage_mbit=options.storage_mbit)
    try:
        world = ImageWorld(cluster, options.size)
        listed = chunks_path(world.archive)
        content, pairs = listed.read_bytes(), []
        for _ in range(options.repeats):
            listed.unlink()
            each = world.distribute()
            listed.write_bytes(content)
            pairs.append((each, world.distribute()))
            print("  each {:.1f} s, passed on {:.1f} s".format(*pairs[-1]), flush=True)
        print(f"{format_size(world.archive.stat().st_size)} to {options.nodes} nodes, storage {options.storage_mbit} Mbit/s")
        for name, place in (("each reads it", 0), ("read once, passed on", 1)):
            print(f"{name:20} {statistics.median(pair[place] for pair in pairs):7.1f} s")
        print(f"ratio {statistics.median(pair[0] / pair[1] for pair in pairs):.2f}")
        for line in {line.partition("image: ")[2] for line in world.log().splitlines() if "of its archive" in line}:
            print(f"passed on: {line}")
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
