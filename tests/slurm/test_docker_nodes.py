"""A mini-cluster with container daemons: each node its own dockerd and podman, GPUs by the daemon's own path, and nothing left behind."""

import os
from pathlib import Path

import pytest

from tests import images
from tests.minicluster import Cluster, ClusterError
from tests.minicluster.waiting import wait_until

pytestmark = pytest.mark.slow

RUN = ["run", "--rm", "--network", "host"]
HARDENED = ["--read-only", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
SMI = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]


def told(cluster: Cluster, node: str, argv: list[str], **options: object) -> str:
    done = cluster.exec(node, argv, timeout=120, **options)
    assert done.returncode == 0, done
    return done.stdout


def started(pid: int) -> str | None:
    """When, in the kernel's ticks: the number alone may be another process's by now. None where it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] == "Z" else words[19]


def test_each_node_has_its_own_daemon(docker_cluster: Cluster) -> None:
    for node in ("login", "n1", "n2"):
        assert told(docker_cluster, node, ["docker", *RUN, images.BASE, "hostname"]).strip() == node
    told(docker_cluster, "n1", ["docker", "tag", images.BASE, "only/here:1"])
    assert told(docker_cluster, "n2", ["docker", "images", "-q", "only/here"]) == ""
    told(docker_cluster, "n1", ["docker", "rmi", "only/here:1"])
    assert not Path("/run/docker.sock").exists() or told(docker_cluster, "n1", ["docker", "ps", "-q"]) == ""


def test_nvidia_smi_lists_the_nodes_gpus_in_the_order_of_the_bus(docker_cluster: Cluster) -> None:
    for node in docker_cluster.nodes:
        cards = docker_cluster.gpus(node)
        expected = [f"{index}, {card.uuid}, {card.bus_id}" for index, card in enumerate(cards)]
        assert told(docker_cluster, node, SMI).splitlines() == expected
        assert [line.split("UUID: ")[1] for line in told(docker_cluster, node, ["nvidia-smi", "-L"]).splitlines()] == [
            f"{c.uuid})" for c in cards
        ]
    assert not {card.uuid for card in docker_cluster.gpus("n1")} & {card.uuid for card in docker_cluster.gpus("n2")}
    assert docker_cluster.exec("login", ["nvidia-smi"]).returncode != 0


def test_docker_gives_exactly_the_gpus_asked_for(docker_cluster: Cluster) -> None:
    cards = [docker_cluster.gpus("n1")[index] for index in (1, 3)]
    asked = '"device=' + ",".join(card.uuid for card in cards) + '"'
    other = ["--volume", "/dev/nvidia0:/dev/nvidia0"]  # the file alone gives no right to open it
    argv = ["docker", *RUN, *HARDENED, *other, "--gpus", asked, images.BASE, *SMI]
    lines = told(docker_cluster, "n1", argv).splitlines()
    assert lines == [f"0, {cards[0].uuid}, 00000000:07:00.0", f"1, {cards[1].uuid}, 00000000:0B:00.0"]
    done = docker_cluster.exec("n1", ["docker", *RUN, images.BASE, *SMI], timeout=60)
    assert done.returncode == 127, "without --gpus there is no nvidia-smi in the container"
    done = docker_cluster.exec("n1", ["docker", *RUN, "--gpus", "device=GPU-none", images.BASE, "true"], timeout=60)
    assert done.returncode == 125
    assert "GPU-none: unknown device" in done.stderr


def test_podman_gives_exactly_the_gpus_asked_for(docker_cluster: Cluster) -> None:
    card = docker_cluster.gpus("n2")[2]
    docker_cluster.load_image(images.base_image(), "n2", engine="podman")
    argv = ["podman", *RUN, *HARDENED, "--device", f"nvidia.com/gpu={card.uuid}", "--device", "nvidia.com/gpu=4", images.BASE, *SMI]
    lines = told(docker_cluster, "n2", argv).splitlines()
    assert lines == [f"0, {card.uuid}, 00000000:0A:00.0", f"1, {docker_cluster.gpus('n2')[4].uuid}, 00000000:85:00.0"]
    assert told(docker_cluster, "n1", ["podman", "images", "-q"]) == "", "each node has its own storage"


def test_limits_of_a_container_are_below_the_nodes_cgroup(docker_cluster: Cluster) -> None:
    script = "cat /proc/self/cgroup"
    argv = ["docker", *RUN, "--memory", "64m", "--pids-limit", "50", "--detach", "--name", "limited", images.BASE, "sleep", "1000"]
    told(docker_cluster, "n1", argv)
    try:
        paths = dict(
            line.split(":", 2)[1:] for line in told(docker_cluster, "n1", ["docker", "exec", "limited", "sh", "-c", script]).splitlines()
        )
        assert paths["memory"].startswith("/docker/"), "the node's cgroup namespace begins at the node's cgroup"
        own = Path("/sys/fs/cgroup/memory") / docker_cluster.spec.cgroup_name / "n1" / paths["memory"].strip("/")
        assert (own / "memory.limit_in_bytes").read_text().strip() == str(64 << 20)
        pid = int(told(docker_cluster, "n1", ["docker", "inspect", "--format", "{{.State.Pid}}", "limited"]))
        assert told(docker_cluster, "n1", ["cat", f"/proc/{pid}/comm"]).strip() == "sleep"
    finally:
        told(docker_cluster, "n1", ["docker", "rm", "--force", "limited"])


def test_a_killed_dockerd_leaves_its_containers_until_it_is_back(docker_cluster: Cluster) -> None:
    name = told(docker_cluster, "n2", ["docker", "run", "--detach", "--network", "host", images.BASE, "sleep", "4711"]).strip()
    pids = [int(told(docker_cluster, "n2", ["docker", "inspect", "--format", "{{.State.Pid}}", name]))]
    docker_cluster.dockerd("n2", "kill")
    assert told(docker_cluster, "n2", ["cat", f"/proc/{pids[0]}/comm"]).strip() == "sleep"
    with pytest.raises(ClusterError, match="does not run"):
        docker_cluster.dockerd("n2", "stop")
    docker_cluster.dockerd("n2", "start")
    state = ["docker", "inspect", "--format", "{{.State.Status}}", name]
    wait_until(lambda: told(docker_cluster, "n2", state).strip() == "exited", 30.0, "the container has ended")
    told(docker_cluster, "n2", ["docker", "rm", name])


def test_down_takes_containers_daemons_and_cgroups_along(docker_cluster: Cluster) -> None:
    with Cluster.up(f"dd{os.getpid()}", nodes=1, gpus=1, docker=True) as cluster:
        cluster.load_image(images.base_image(), "n1")
        cluster.load_image(images.base_image(), "n1", engine="podman")
        for engine in ("docker", "podman"):
            told(cluster, "n1", [engine, "run", "--detach", "--network", "host", images.BASE, "sleep", "1000"])
        born = {pid: start for pid in cluster.processes("n1") if (start := started(pid))}
        assert len(born) > 5
        assert len(list(Path("/sys/fs/cgroup").glob(f"*/{cluster.spec.cgroup_name}"))) > 3
        cluster.kill("n1")
        cluster.heal("n1")
        assert told(cluster, "n1", ["docker", "ps", "-q"]) == "", "a lost node comes back without containers, and with a dockerd"
        assert told(cluster, "n1", ["docker", "images", "-q"]) != "", "and with its disk"
    assert not [pid for pid, start in born.items() if started(pid) == start]
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{cluster.spec.cgroup_name}"))
    assert cluster.spec.directory not in Path("/proc/self/mounts").read_text()
    assert not cluster.spec.root.exists()
    told(docker_cluster, "n1", ["docker", "ps"])
