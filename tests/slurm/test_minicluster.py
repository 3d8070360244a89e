"""The mini-cluster itself: what it gives, what happens to it, and that nothing of it stays."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.minicluster import Cluster, ClusterError, Spec, missing_here, slurmconf
from tests.minicluster.spec import USER
from tests.minicluster.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.minicluster"]
pytestmark = pytest.mark.slow


@pytest.fixture
def name() -> Iterator[str]:
    """A name of its own, taken down whatever the test did."""
    if reason := missing_here():
        pytest.skip(reason)
    name = f"test{os.getpid()}x{random.getrandbits(24):x}"
    yield name
    subprocess.run([*PROGRAM, "down", "--name", name], cwd=ROOT, check=True)


def traces(name: str) -> list[str]:
    """All on this machine that carries the cluster's name."""
    own = f"slipway-minicluster-{name}"
    found = [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    found += [str(path) for path in Path("/sys/fs/cgroup").rglob(own)]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if own in line or f"/{name}-" in line]
    found += [str(path) for path in (Path("/tmp") / own, Path("/run/slipway-minicluster") / name) if path.exists()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if own in words or " /run/netns/" + name in words:
            found.append(f"{path.parent.name}: {words}")
    return found


def up(name: str, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PROGRAM, "up", "--name", name, *options], cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)


def test_a_nodes_accounts_are_not_mounted_over_files_that_useradd_replaces(cluster: Cluster) -> None:
    """The kernel takes away what is mounted over a file that is replaced, in every mount namespace."""
    mounted = {line.split()[4] for line in cluster.exec("n1", ["cat", "/proc/self/mountinfo"], check=True).stdout.splitlines()}
    assert "/etc" in mounted
    assert not mounted & {f"/etc/{name}" for name in ("passwd", "group", "shadow", "hosts")}


@pytest.mark.parametrize("user", [None, USER])
def test_whoever_is_on_a_node_can_make_namespaces_with_their_own_proc(cluster: Cluster, user: str | None) -> None:
    """As Apptainer and podman do; the machine's own /proc is covered in places, and hides nothing on a node."""
    script = "mount -t proc none /proc && echo /proc/[0-9]*"
    done = cluster.exec("n1", ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", script], user=user)
    assert (done.returncode, done.stdout) == (0, "/proc/1\n"), done


def commands(cluster: Cluster, node: str, beginning: str) -> list[int]:
    found = []
    for pid in cluster.processes(node):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if words.startswith(beginning):
            found.append(pid)
    return found


def test_a_node_that_loses_power_is_requeued_from_and_comes_back(cluster: Cluster) -> None:
    job = submit(cluster, "sleep 1000", "--nodelist=n2")
    wait_until(lambda: len(commands(cluster, "n2", "sleep 1000")) == 1, 30.0, "the job runs")
    cluster.kill("n2")
    assert cluster.processes("n2") == []
    with pytest.raises(ClusterError, match="heal n2"):
        cluster.exec("n2", ["true"])
    wait_until(lambda: cluster.states()["n2"].startswith("down"), 60.0, "the scheduler notices")
    cluster.heal("n2")
    assert cluster.states()["n2"] == "idle"
    bound = {path.parts[2] for path in (cluster.spec.root, ROOT) if path.parts[:2] == ("/", "tmp")}
    assert set(cluster.exec("n2", ["ls", "/tmp"]).stdout.split()) <= bound
    assert "restarts 1" in f"restarts {restarts(cluster, job)}"
    cluster.exec("login", ["scancel", job])


def submit(cluster: Cluster, command: str, *options: str) -> str:
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", f"exec {command}"]
    return cluster.exec("login", argv, check=True).stdout.strip()


def restarts(cluster: Cluster, job: str) -> str:
    text = cluster.exec("login", ["scontrol", "show", "job", job], check=True).stdout
    match = re.search(r"Restarts=(\d+)", text)
    assert match, text
    return match[1]


@pytest.mark.parametrize("how", ["cut", "hang"])
def test_an_unreachable_node_keeps_its_processes(cluster: Cluster, how: str) -> None:
    sleeper = cluster.popen("n3", ["sleep", "4321"])
    try:
        wait_until(lambda: len(commands(cluster, "n3", "sleep 4321")) == 1, 10.0, "it runs")
        getattr(cluster, how)("n3")
        wait_until(lambda: cluster.states()["n3"].startswith("down"), 90.0, "the scheduler notices")
        cluster.heal("n3")
        assert cluster.states()["n3"] == "idle"
        assert len(commands(cluster, "n3", "sleep 4321")) == 1
    finally:
        sleeper.terminate()
        sleeper.wait(timeout=10)
    wait_until(lambda: not commands(cluster, "n3", "sleep 4321"), 10.0, "SIGTERM reaches it")


def test_the_controller_can_be_stopped_and_lost(cluster: Cluster) -> None:
    cluster.ctld("stop")
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.exec("login", ["squeue"], timeout=1)
    cluster.ctld("cont")
    assert cluster.exec("login", ["squeue"], timeout=30).returncode == 0
    cluster.ctld("kill")
    with pytest.raises(ClusterError, match="ctld start"):
        cluster.ctld("kill")
    cluster.ctld("start")
    wait_until(lambda: cluster.exec("login", ["srun", "true"], timeout=30).returncode == 0, 60.0, "jobs run again")


def test_two_clusters_live_side_by_side(cluster: Cluster, name: str) -> None:
    """Same node names, addresses and job ids; what one kills, the other keeps."""
    other = Cluster.up(name, nodes=1, gpus=1)
    with pytest.raises(ClusterError, match="up already"):
        Cluster.up(name)
    ours = submit(cluster, "sleep 1111", "--nodelist=n1")
    submit(other, "sleep 1111")
    wait_until(lambda: commands(cluster, "n1", "sleep 1111") != [] != commands(other, "n1", "sleep 1111"), 30.0, "both run")
    other.down()
    assert traces(name) == []
    assert len(commands(cluster, "n1", "sleep 1111")) == 1
    cluster.exec("login", ["scancel", ours], check=True)


@pytest.mark.parametrize("after_s", [0.05, 0.12, 0.2, 0.3, 0.5])
def test_a_killed_up_leaves_nothing_that_down_does_not_find(name: str, after_s: float) -> None:
    building = up(name, "--nodes", "2", "--storage-mbit", "100")
    try:
        building.wait(timeout=after_s)
    except subprocess.TimeoutExpired:
        building.send_signal(signal.SIGKILL)
        building.wait()
    subprocess.run([*PROGRAM, "down", "--name", name], cwd=ROOT, check=True)
    assert traces(name) == []


def test_a_name_that_was_only_begun_is_given_back(name: str) -> None:
    """`up` killed between taking the name and writing what for, and before state.json was whole."""
    entry = Path("/run/slipway-minicluster") / name
    directory = Path(f"/tmp/slipway-minicluster-{name}")
    for text in ("", str(directory)):
        entry.parent.mkdir(exist_ok=True)
        entry.write_text(text)
        directory.mkdir()
        (directory / ".state.json.part-0").touch()
        assert subprocess.run([*PROGRAM, "down", "--name", name], cwd=ROOT, check=False).returncode == 0
        assert not entry.exists()
        if text:
            assert traces(name) == []
        else:
            (directory / ".state.json.part-0").unlink()
            directory.rmdir()


def test_a_failed_up_says_why_and_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurmconf, "gres_conf", lambda spec: "Name=gpu Type=p100 File=/dev/no-such-gpu\n")
    monkeypatch.setattr("tests.minicluster.building.START_LIMIT_S", 3.0)
    with pytest.raises(ClusterError, match="no-such-gpu"):
        Cluster.up(name, nodes=1)
    assert traces(name) == []


def test_slow_storage_is_as_slow_as_asked_and_can_be_changed(name: str) -> None:
    cluster = Cluster.up(name, nodes=2, gpus=0, storage_mbit=40)
    (cluster.shared / "file").write_bytes(os.urandom(1 << 20))
    read = ["sh", "-c", f"a=$(date +%s%N); cat {cluster.shared}/file | wc -c; echo $(($(date +%s%N)-a))"]
    size, slow_ns = map(int, cluster.exec("n1", read, timeout=60).stdout.split())
    assert size == 1 << 20
    assert slow_ns > 0.15e9  # 0.21 s at 40 Mbit/s, less the burst
    cluster.set_bandwidth(storage_mbit=4000)
    _, fast_ns = map(int, cluster.exec("n2", read, timeout=60).stdout.split())
    assert fast_ns < slow_ns


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "a-b"), ("name", ""), ("directory", "relative"), ("directory", "/" + "x" * 99), ("nodes", 0), ("storage_mbit", 0)],
)
def test_wrong_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(ClusterError, match=r"found .*valid:"):
        Spec(**{"name": "a", "directory": "/tmp/a", field: value})
