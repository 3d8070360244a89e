"""Images by real daemons: pinned on the login node, archived on storage, loaded on each node, removed again."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from containers.images.model import PinnedImage, check_same
from tests import images, registry
from tests.minicluster import Cluster
from workflow.run.images import load_argv

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-P", "-m", "tests.slurm.image_commands"]
USER = "reader:canary-secret"
OURS = "slipway-loaded/u0"


@pytest.fixture
def place(docker_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory on storage, and nodes on which no image of ours is left."""
    directory = docker_cluster.shared / request.node.name.replace("[", "-").rstrip("]")
    directory.mkdir()
    yield directory
    for node in ("login", *docker_cluster.nodes):
        for engine, prefix in (("docker", ""), ("podman", "localhost/")):
            filters = ["--filter", f"reference={prefix}{OURS}", "--format", "{{.Repository}}:{{.Tag}}"]
            done = docker_cluster.exec(node, [engine, "images", *filters], timeout=60)
            for tag in done.stdout.split():
                docker_cluster.exec(node, [engine, "rmi", tag], timeout=60)
        docker_cluster.exec(node, ["rm", "-rf", "/local/slipway"])


def call(cluster: Cluster, node: str, *words: object) -> dict[str, Any]:
    done = cluster.exec(node, [*PROGRAM, *map(str, words)], cwd=ROOT, timeout=300, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout, done
    answer: dict[str, Any] = json.loads(done.stdout) | {"said": done.stderr}
    assert (done.returncode == 0) == ("error" not in answer), done
    return answer


def archived(cluster: Cluster, storage: Path, reference: str, *words: object, engine: str = "docker") -> dict[str, Any]:
    return call(cluster, "login", "archive", "--engine", engine, "--reference", reference, "--storage", storage, *words)


def loaded(cluster: Cluster, node: str, archive: str, *words: object, engine: str = "docker") -> dict[str, Any]:
    return call(cluster, node, "load", "--engine", engine, "--archive", archive, "--cache", "/local/slipway", *words)


def tiny(cluster: Cluster, place: Path, content: str, tag: str, engine: str = "docker") -> Path:
    """Loaded on the login node under `tag`, as a build would leave it."""
    archive = images.tiny_image(place / f"image-{content[:8]}", content, tag)
    cluster.load_image(archive, "login", engine=engine)
    return archive


@pytest.mark.parametrize("engine", [pytest.param("docker", marks=pytest.mark.long), "podman"])  # docker: test_container_runs.py too
def test_every_node_starts_what_the_login_node_pinned(docker_cluster: Cluster, place: Path, engine: str) -> None:
    if engine == "podman":
        docker_cluster.load_image(images.base_image(), "login", engine="podman")
    for node in docker_cluster.nodes:
        docker_cluster.exec(node, [engine, "rmi", "--force", images.BASE], timeout=60)
    made = archived(docker_cluster, place, images.BASE, engine=engine)
    path = Path(made["archive"])
    assert path.parent == place / "images"
    before = path.stat().st_mtime_ns
    assert archived(docker_cluster, place, images.BASE, engine=engine)["sha256"] == made["sha256"]
    assert path.stat().st_mtime_ns == before, "once"
    node_ids = {}
    for node in docker_cluster.nodes:
        argv = load_argv(sys.executable, str(path), engine, "/local/slipway")
        place_of_it = json.dumps({"archive": str(path)}) + "\n"
        done = docker_cluster.exec(node, list(argv), cwd=ROOT, timeout=300, env={"PYTHONPATH": str(ROOT)}, input=place_of_it)
        answer = json.loads(done.stdout.splitlines()[-1])["result"]
        node_ids[node] = answer["image_id"]
        run = [engine, "run", "--rm", "--network", "host", answer["start"].removeprefix("sha256:"), "python3", "-c", "print(6 * 7)"]
        assert docker_cluster.exec(node, run, timeout=60).stdout == "42\n"
        path.rename(path.with_suffix(".hidden"))
        path.symlink_to("/dev/null")
        assert loaded(docker_cluster, node, str(path), engine=engine)["image_id"] == answer["image_id"], "it is there: no byte is read"
        path.with_suffix(".hidden").replace(path)
    check_same(PinnedImage(**made["image"]), node_ids)


def test_a_tag_that_moves_moves_no_study(docker_cluster: Cluster, place: Path) -> None:
    tiny(docker_cluster, place, "first", "site/moving:1")
    first = archived(docker_cluster, place, "site/moving:1")
    tiny(docker_cluster, place, "second", "site/moving:1")
    second = archived(docker_cluster, place, "site/moving:1")
    assert first["image"]["image_id"] != second["image"]["image_id"]
    docker_cluster.load_image(place / "image-second" / "image.tar", "n1")
    assert loaded(docker_cluster, "n1", first["archive"])["image_id"] == first["image"]["image_id"]
    named = docker_cluster.exec("n1", ["docker", "image", "inspect", "--format", "{{.Id}}", "site/moving:1"]).stdout.strip()
    assert named == second["image"]["image_id"], "loading moves nobody's tag"
    docker_cluster.exec("n1", ["docker", "rmi", "site/moving:1"])


def test_a_damaged_archive_never_reaches_the_daemon_and_two_loads_at_once_are_one(docker_cluster: Cluster, place: Path) -> None:
    made = archived(docker_cluster, place, images.BASE)
    path = Path(made["archive"])
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
    docker_cluster.exec("n2", ["docker", "rmi", "--force", images.BASE])
    assert loaded(docker_cluster, "n2", str(path))["error"][0] == "DigestMismatch"
    assert docker_cluster.exec("n2", ["docker", "images", "--quiet", "--filter", f"reference={OURS}"]).stdout == ""
    path.unlink()
    made = archived(docker_cluster, place, images.BASE)
    argv = [*PROGRAM, "load", "--engine", "docker", "--archive", made["archive"], "--cache", "/local/slipway"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT, "env": {"PYTHONPATH": str(ROOT)}}
    both = [docker_cluster.popen("n2", argv, **options) for _ in range(2)]
    answers = sorted((json.loads(child.communicate(timeout=300)[0]) for child in both), key=lambda answer: answer["seconds"])
    assert {answer["image_id"] for answer in answers} == {made["image"]["image_id"]}
    assert docker_cluster.exec("n2", ["sh", "-c", "ls -A /local/slipway/images | grep -c part"]).stdout.strip() == "0"


def test_what_does_not_fit_is_refused_with_what_is_needed(docker_cluster: Cluster) -> None:
    small = "mkdir -p /run/small && mount -t tmpfs -o size=20m none /run/small"
    assert docker_cluster.exec("login", ["sh", "-c", small]).returncode == 0
    words = ("--reference", images.BASE, "--storage", "/run/small")
    try:
        answer = call(docker_cluster, "login", "archive", "--engine", "docker", *words)
        assert answer["error"][0] == "NotEnoughSpace"
        assert "are needed" in answer["error"][1]
        answer = call(docker_cluster, "n1", "archive", "--engine", "podman", *words)
        assert "podman cannot pull it" in answer["error"][1]
    finally:
        docker_cluster.exec("login", ["umount", "/run/small"])


def test_a_hung_dockerd_is_named_and_no_wait_is_for_ever(docker_cluster: Cluster, place: Path) -> None:
    tiny(docker_cluster, place, "hung", "site/hung:1")
    made = archived(docker_cluster, place, "site/hung:1")
    docker_cluster.dockerd("n1", "stop")
    try:
        answer = loaded(docker_cluster, "n1", made["archive"])
    finally:
        docker_cluster.dockerd("n1", "cont")
    assert answer["error"][0] == "ContainerError"
    assert "had not ended after 10 s" in answer["error"][1]
    assert "docker " in answer["error"][1]
    assert "error" not in loaded(docker_cluster, "n1", made["archive"])


@pytest.mark.parametrize("engine", ["docker", pytest.param("podman", marks=pytest.mark.long)])
def test_reaping_takes_ours_and_leaves_what_is_used_or_anothers(docker_cluster: Cluster, place: Path, engine: str) -> None:
    def on_node(*argv: str) -> str:
        done = docker_cluster.exec("n2", list(argv), cwd=ROOT, timeout=300, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done
        return done.stdout

    site = place / "site.yaml"
    site.write_text(f"storage: {place}\ncache: {{path: /local/slipway}}\nengine: docker\nscheduler: slurm\n")
    reap = ("slipway", "reap", "--images", "--remove", "--site", str(site))
    docker_cluster.load_image(images.base_image(), "login", engine=engine)
    foreign = tiny(docker_cluster, place, "unused", "site/unused:1", engine)
    archives = [archived(docker_cluster, place, name, engine=engine) for name in (images.BASE, "site/unused:1")]
    docker_cluster.exec("n2", [engine, "rmi", "--force", images.BASE])  # what is there already is not ours
    for made in archives:
        loaded(docker_cluster, "n2", made["archive"], engine=engine)
    ids = [made["image"]["image_id"].removeprefix("sha256:") for made in archives]
    used, unused = (image_id[:12] for image_id in ids)
    on_node("sed", "-i", 's/"used": .*/"used": 1000000000/', *(f"/local/slipway/images/{short}.{engine}.json" for short in (used, unused)))
    on_node(engine, "run", "--detach", "--network", "host", "--name", "user", ids[0], "sleep", "1000")
    anothers = f"{'localhost/' if engine == 'podman' else ''}slipway-loaded/u4711:{unused}"
    try:
        lines = {line.split()[1]: line for line in on_node(*reap).splitlines() if line.startswith("image ")}
        assert lines[unused].endswith(": removed"), lines
        assert "stays: " in lines[used], lines
        tags = on_node(engine, "images", "--format", "{{.Tag}}").split()
        assert (used in tags, unused in tags) == (True, False)
        assert on_node(engine, "ps", "--format", "{{.Names}}").split() == ["user"]
        docker_cluster.load_image(foreign, "n2", engine=engine)
        on_node(engine, "tag", "site/unused:1", anothers)
        on_node(*reap)
        assert {anothers.removeprefix("localhost/"), "site/unused:1"} <= {
            name.removeprefix("localhost/") for name in on_node(engine, "images", "--format", "{{.Repository}}:{{.Tag}}").split()
        }
    finally:
        docker_cluster.exec("n2", [engine, "rm", "--force", "user"], timeout=60)
        docker_cluster.exec("n2", [engine, "rmi", "site/unused:1", anothers])
        docker_cluster.exec("login", [engine, "rmi", "site/unused:1"])


@contextmanager
def private_registry(cluster: Cluster, node: str, *offers: str) -> Iterator[None]:
    words = [word for offer in offers for word in ("--image", offer)]
    argv = [sys.executable, "-P", "-m", "tests.registry", "--user", USER, *words]
    child = cluster.popen(node, argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield
    finally:
        child.terminate()
        child.communicate(timeout=30)


def test_a_private_registry_by_the_users_own_credentials(docker_cluster: Cluster, place: Path) -> None:
    old = images.tiny_image(place / "image-old", "old", "x/old:1")
    reference = f"{registry.NAME}/site/private:1"
    credentials = place / "config.json"
    words = ("archive", "--engine", "docker", "--reference", reference, "--storage", place)

    def auth_of(user: str) -> str:
        return json.dumps({"auths": {registry.NAME: {"auth": base64.b64encode(user.encode()).decode()}}})

    with private_registry(docker_cluster, "login", f"site/private:1={old}"):
        answer = call(docker_cluster, "login", *words)
        assert "docker login" in answer["error"][1]
        for wrong in (auth_of("reader:canary-other"), "{"):
            credentials.write_text(wrong)
            answer = call(docker_cluster, "login", *words, "--credentials", credentials)
            assert (answer["error"][0], str(credentials) in answer["error"][1]) == ("ContainerError", True), answer
            assert "canary" not in json.dumps(answer)
        credentials.write_text(auth_of(USER))
        made = call(docker_cluster, "login", *words, "--credentials", credentials)
    assert made["image"]["digest"] not in ("", made["image"]["image_id"])
    assert "canary" not in json.dumps(made)
    taken = {node: loaded(docker_cluster, node, made["archive"])["image_id"] for node in ("n1", "n2")}
    check_same(PinnedImage(**made["image"]), taken)
    docker_cluster.exec("login", ["docker", "rmi", reference])
