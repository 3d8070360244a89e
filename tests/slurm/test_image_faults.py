"""Loads of images that are killed in the middle, by real daemons."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests import images
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.test_images import ROOT, archived, loaded, place

pytestmark = pytest.mark.slow
__all__ = ["place"]

ENV = {"PYTHONPATH": str(ROOT)}
HALF = """
import os, signal
from types import SimpleNamespace
from containers.images import streams
from tests.slurm import image_commands
zstandard = streams.zstandard

class Half:
    def copy_stream(self, file, target):
        for number, block in enumerate(zstandard.ZstdDecompressor().read_to_iter(file)):
            if number == 400:
                os.kill(os.getpid(), signal.SIGSTOP)
            target.write(block)

streams.zstandard = SimpleNamespace(ZstdDecompressor=Half, ZstdError=zstandard.ZstdError)
raise SystemExit(image_commands.main())
"""
"""A load that stops itself when the engine has about a third of the archive."""


def told(cluster: Cluster, node: str, *argv: str) -> str:
    done = cluster.exec(node, list(argv), timeout=120)
    assert done.returncode == 0, done
    return str(done.stdout)


def ids(cluster: Cluster, node: str, engine: str = "docker") -> set[str]:
    return {line.removeprefix("sha256:") for line in told(cluster, node, engine, "images", "--quiet", "--no-trunc").split()}


def pids(cluster: Cluster, node: str, *words: str) -> list[int]:
    """Living processes of the node with all these in their command line."""
    found = []
    for pid in cluster.processes(node):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if set(words) <= set(line):
            found.append(pid)
    return found


def loaders(cluster: Cluster) -> list[int]:
    """HALF itself, without what brought it into the node."""
    return [pid for pid in pids(cluster, "n2", HALF) if Path(f"/proc/{pid}/exe").resolve() == Path(sys.executable).resolve()]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("engine", "victim"),
    [
        ("docker", "loader"),
        pytest.param("docker", "dockerd", marks=pytest.mark.long),
        ("podman", "client"),
        pytest.param("docker", "client", marks=pytest.mark.long),
        pytest.param("podman", "loader", marks=pytest.mark.long),
    ],
)
def test_a_load_that_is_killed_in_the_middle_is_not_there_and_the_next_one_loads(
    docker_cluster: Cluster, place: Path, engine: str, victim: str
) -> None:
    if engine == "podman":
        docker_cluster.load_image(images.base_image(), "login", engine="podman")
    made = archived(docker_cluster, place, images.BASE, engine=engine)
    wanted = made["image"]["image_id"].removeprefix("sha256:")
    docker_cluster.exec("n2", [engine, "rmi", "--force", images.BASE], timeout=60)
    assert wanted not in ids(docker_cluster, "n2", engine)
    words = ["load", "--engine", engine, "--archive", made["archive"], "--cache", "/local/slipway"]
    log = place / "said"
    with log.open("w") as file:
        child = docker_cluster.popen("n2", [sys.executable, "-P", "-c", HALF, *words], stdout=file, stderr=file, cwd=ROOT, env=ENV)
    try:
        wait_until(lambda: any(is_stopped(pid) for pid in loaders(docker_cluster)), 60.0, "the load is half way")
        (loader,) = loaders(docker_cluster)
        clients = pids(docker_cluster, "n2", engine, "load", "--quiet")
        assert clients
        if victim == "dockerd":
            docker_cluster.dockerd("n2", "kill")
        for pid in {"loader": [loader], "client": clients, "dockerd": []}[victim]:
            os.kill(pid, signal.SIGKILL)
        for pid in {loader, child.pid} - ({loader} if victim == "loader" else set()):
            os.kill(pid, signal.SIGCONT)  # what entered the node has stopped with it
        child.wait(60)
        wait_until(lambda: not loaders(docker_cluster), 60.0, "the load has ended")
    finally:
        if not pids(docker_cluster, "n2", "dockerd"):
            docker_cluster.dockerd("n2", "start")
    if victim != "loader":
        assert '"ContainerError"' in log.read_text(), child.returncode
    wait_until(lambda: not pids(docker_cluster, "n2", engine, "load", "--quiet"), 30.0, "no client is left")
    assert wanted not in ids(docker_cluster, "n2", engine)
    again = loaded(docker_cluster, "n2", made["archive"], engine=engine)
    run = [engine, "run", "--rm", "--network", "host", again["start"].removeprefix("sha256:"), "python3", "-c", "print(6 * 7)"]
    assert told(docker_cluster, "n2", *run) == "42\n"
    left = told(docker_cluster, "n2", "ls", "-A", "/local/slipway/images").split()
    assert {name.partition(".")[2] for name in left} == {f"{engine}.json", "lock"}
