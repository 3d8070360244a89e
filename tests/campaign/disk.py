"""Network storage that can be full, for a whole cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.minicluster import Cluster


class Disk:
    """A small file system of its own as network storage, which can be full: one loop device, mounted by every host of the cluster."""

    def __init__(self, cluster: Cluster, megabytes: int = 600) -> None:
        self.cluster, self.path = cluster, cluster.shared / "slipway"
        image = cluster.shared / "disk.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        found = subprocess.run(["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True)
        self.device = found.stdout.strip()
        subprocess.run(["mount", self.device, str(self.path)], check=True)
        self.path.chmod(0o1777)
        for host in ("login", *cluster.nodes):
            self.mount(host)

    def mount(self, host: str) -> None:
        """A host has a /dev of its own."""
        number = str(os.minor(Path(self.device).stat().st_rdev))
        there = self.cluster.exec(host, ["test", "-d", f"{self.path}/lost+found"]).returncode == 0
        if not there:
            self.cluster.exec(host, ["mknod", self.device, "b", "7", number])
            self.cluster.exec(host, ["mount", self.device, str(self.path)], check=True)

    def close(self) -> None:
        """After the end of the cluster's hosts would be too late: its directory goes with them."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)
        subprocess.run(["losetup", "--detach", self.device], check=False)
