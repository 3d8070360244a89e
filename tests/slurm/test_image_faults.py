"""Images where something fails half way, by real daemons: registries that are away or lie, kills in the middle of a load, reaping by the
command, archives that have gone."""

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests import images, registry
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.test_images import OURS, ROOT, archived, call, loaded, place, private_registry

pytestmark = pytest.mark.slow
__all__ = ["place"]

ENV = {"PYTHONPATH": str(ROOT)}
STORES = [("docker", ""), ("podman", "localhost/")]
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


def test_a_wrong_or_a_missing_credentials_file_is_named_where_the_study_starts(docker_cluster: Cluster, place: Path) -> None:
    archive = images.tiny_image(place / "image-wrong", "wrong", "x/wrong:1")
    words = ("archive", "--engine", "docker", "--reference", f"{registry.NAME}/site/wrong:1", "--storage", place, "--credentials")
    wrong = place / "config.json"
    with private_registry(docker_cluster, "login", f"site/wrong:1={archive}"):
        for content, expected in (
            (json.dumps({"auths": {registry.NAME: {"auth": base64.b64encode(b"reader:canary-other").decode()}}}), str(wrong)),
            ("{", str(wrong)),
        ):
            wrong.write_text(content)
            answer = call(docker_cluster, "login", *words, wrong)
            assert answer["error"][0] == "ContainerError"
            assert expected in answer["error"][1]
            assert "canary" not in json.dumps(answer)
        answer = call(docker_cluster, "login", *words, place / "none.json")
    assert answer["error"][0] == "ConfigError"
    assert "none.json' is not there; `docker login` writes one" in answer["error"][1]


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
    docker_cluster.load_image(images.base_image(), "n2")


def reap(cluster: Cluster, site: Path, *words: str) -> str:
    argv = [sys.executable, "-m", "workflow.commands.main", "reap", "--images", "--site", str(site), *words]
    done = cluster.exec("n2", argv, cwd=ROOT, timeout=300, env=ENV)
    assert done.returncode == 0, done
    return str(done.stdout)


@pytest.mark.long
def test_the_command_lists_and_removes_what_no_run_used_in_every_engine(docker_cluster: Cluster, place: Path) -> None:
    site = place / "site.yaml"
    site.write_text(f"storage: {place}\ncache: {{path: /local/slipway}}\nengine: docker\nscheduler: slurm\n")
    shorts: dict[str, str] = {}
    for engine, prefix in STORES:
        docker_cluster.exec("n2", [engine, "rmi", "--force", images.BASE], timeout=60)
        for name in ("old", "new", "anothers"):
            made_from = images.tiny_image(place / f"image-{engine}-{name}", f"{engine} {name}", f"site/{name}:1")
            docker_cluster.load_image(made_from, "login", engine=engine)
            made = archived(docker_cluster, place, f"site/{name}:1", engine=engine)
            shorts[f"{engine} {name}"] = short = made["image"]["image_id"][7:19]
            loaded(docker_cluster, "n2", made["archive"], engine=engine)
            if name == "anothers":
                told(docker_cluster, "n2", engine, "tag", made["image"]["image_id"][7:], f"{prefix}slipway-loaded/u4711:{short}")
                told(docker_cluster, "n2", engine, "rmi", f"{prefix}{OURS}:{short}")
            told(docker_cluster, "login", engine, "rmi", f"site/{name}:1")
        docker_cluster.load_image(images.base_image(), "login", engine=engine)
        made = archived(docker_cluster, place, images.BASE, engine=engine)
        shorts[f"{engine} used"] = made["image"]["image_id"][7:19]
        used = loaded(docker_cluster, "n2", made["archive"], engine=engine)["image_id"].removeprefix("sha256:")
        told(docker_cluster, "n2", engine, "run", "--detach", "--network", "host", "--name", "user", used, "sleep", "1000")
        for name, days in (("old", 30), ("used", 20), ("new", 2)):
            mark = f"/local/slipway/images/{shorts[f'{engine} {name}']}.{engine}.json"
            told(docker_cluster, "n2", "sed", "-i", f's/"used": .*/"used": {time.time() - days * 86400}/', mark)
    try:
        listed = reap(docker_cluster, site)
        for engine, _ in STORES:
            lines = [line.split()[1] for line in listed.splitlines() if line.startswith("image ") and shorts_of(line, shorts, engine)]
            assert lines == [shorts[f"{engine} {name}"] for name in ("old", "used")], listed
            assert f"{engine}: 2 images of Slipway not used for 7 days" in listed
        assert listed.count("would be removed by --remove") == 4
        removed = reap(docker_cluster, site, "--remove")
        for engine, prefix in STORES:
            assert f"image {shorts[f'{engine} old']} " in removed
            tags = told(docker_cluster, "n2", engine, "images", "--format", "{{.Repository}}:{{.Tag}}").split()
            assert f"{prefix}{OURS}:{shorts[f'{engine} old']}" not in tags
            assert f"{prefix}{OURS}:{shorts[f'{engine} new']}" in tags
            assert f"{prefix}slipway-loaded/u4711:{shorts[f'{engine} anothers']}" in tags
            assert told(docker_cluster, "n2", engine, "ps", "--format", "{{.Names}}").split() == ["user"]
            assert any(shorts[f"{engine} used"] in line and "stays: " in line for line in removed.splitlines()), removed
    finally:
        for engine, prefix in STORES:
            docker_cluster.exec("n2", [engine, "rm", "--force", "user"], timeout=60)
            docker_cluster.exec("n2", [engine, "rmi", f"{prefix}slipway-loaded/u4711:{shorts[f'{engine} anothers']}"], timeout=60)
        docker_cluster.load_image(images.base_image(), "n2")


def shorts_of(line: str, shorts: dict[str, str], engine: str) -> bool:
    """Whether a line is about an image of that engine: both have the base image, by the same id."""
    return line.split()[1] in {short for name, short in shorts.items() if name.startswith(engine)} and (
        ("(localhost/" in line) == (engine == "podman")
    )
