"""Sessions in containers on a real cluster: exactly the granted GPUs, the dataset read-only, no network but a loopback, the socket outside;
what was written is pushed, and no container outlives its job."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.gpus.decision import listed_uuids
from containers.spec import TAG
from tests import images
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until

pytestmark = pytest.mark.slow
ROOT: Final = Path(__file__).parents[2]
DIGITS: Final = ROOT / "tests" / "extras" / "session" / "digits.py"
IMAGE: Final = "slipway-test/digits:6"
PLACE: Final = "/usr/lib/python3/dist-packages/digits.py"
STUDY: Final = """\
study: sessions
datasets:
  photos: {source: synthetic, samples: 40, size: 32, channels: grey, shards: 2}
base: {framework: pytorch, dataset: photos, model: lenet, batch_size: 8}
"""
GET: Final = """
import http.client, socket, sys
link = http.client.HTTPConnection("127.0.0.1")
link.sock = socket.socket(socket.AF_UNIX)
link.sock.connect(sys.argv[1])
link.request("GET", "/", headers={"Authorization": "token " + sys.argv[2]} if sys.argv[2:] else {})
answer = link.getresponse()
print(answer.status, answer.read().decode())
"""
COMPUTE: Final = """
import http.client, json, socket, sys, websocket
head = {"Authorization": "token " + sys.argv[2]}
def link():
    found = socket.socket(socket.AF_UNIX)
    found.connect(sys.argv[1])
    return found
server = http.client.HTTPConnection("127.0.0.1")
server.sock = link()
server.request("POST", "/api/kernels", "{}", head)
kernel = json.loads(server.getresponse().read())["id"]
code = "import json, os, subprocess; seen = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout;"
code += "print(json.dumps({'out': os.environ['SLIPWAY_OUT'], 'work': os.getcwd(), 'gpus': len(seen.splitlines())}))"
channels = websocket.create_connection("ws://127.0.0.1/api/kernels/%s/channels" % kernel, socket=link(), header=head, timeout=120)
asked = {"header": {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "1", "date": "", "version": "5.3"}}
asked.update(parent_header={}, metadata={}, channel="shell", content={"code": code, "silent": False})
channels.send(json.dumps(asked))
while True:
    told = json.loads(channels.recv())
    if told["msg_type"] in ("stream", "error"):
        print(told["content"].get("text", told["content"]))
        break
"""


class Place:
    """Of one engine, on the docker cluster's shared storage. An image that only the login node has."""

    def __init__(self, cluster: Cluster, engine: str) -> None:
        self.cluster, self.engine = cluster, engine
        self.root = Path(tempfile.mkdtemp(prefix=f"sessions-{engine}-", dir=cluster.shared))
        self.site = self.root / "site.yaml"
        text = cluster.site_file.read_text().replace("engine: bare", f"engine: {engine}").replace("device: cpu", "device: cuda")
        self.site.write_text(text.replace(f"{cluster.shared}/slipway", f"{self.root}/storage"))
        (self.root / "study.yaml").write_text(STUDY)
        if engine == "podman":
            cluster.load_image(images.base_image(), "login", engine=engine)
        made = self.told("login", "create", "--network", "host", images.BASE, "true").strip()
        self.told("login", "cp", str(DIGITS), f"{made}:{PLACE}")
        self.told("login", "commit", made, IMAGE)
        self.told("login", "rm", made)

    def told(self, node: str, *words: str) -> str:
        """What the engine says there."""
        return self.on(node, self.engine, *words)

    def on(self, node: str, *argv: str) -> str:
        """What a command says there."""
        done = self.cluster.exec(node, list(argv), timeout=300, cwd=self.root)
        assert done.returncode == 0, done
        return str(done.stdout)

    def slipway(self, *words: str) -> str:
        """On the login node."""
        return self.on("login", "env", f"SLIPWAY_SITE={self.site}", "slipway", *words)

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.slipway("session", "ls", "--json"))
        return found

    def containers(self) -> list[str]:
        """Of runs and sessions, on all nodes."""
        words = ("ps", "--all", "--quiet", "--filter", f"label={TAG}")
        return [line for node in self.cluster.nodes for line in self.told(node, *words).splitlines()]

    def close(self) -> None:
        self.cluster.exec("login", ["scancel", "--user", "root"], timeout=60)
        wait_until(lambda: not self.cluster.exec("login", ["squeue", "--noheader"], timeout=60).stdout.strip(), 60.0, "no job is left")
        wait_until(lambda: not self.containers(), 60.0, "no container is left")
        self.told("login", "rmi", "--force", IMAGE)


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.long)])
def place(docker_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Place]:
    found = Place(docker_cluster, request.param)
    yield found
    found.close()


def test_a_server_of_an_image_has_its_gpus_its_data_and_nothing_else(place: Place) -> None:
    place.slipway("dataset", "build", "photos", "--study", "study.yaml")
    words = ("--ports", "5000", "--image", IMAGE, "--gpus", "2", "--dataset", "photos", "--study", "study.yaml", "--push")
    place.slipway("session", "serve", *words, "--", "python3", "-m", "digits", "-p", "5000")
    (session,) = place.sessions()
    node, path, token = session["node"], session["sockets"][0], (Path(session["directory"]) / "token").read_text()
    status, _, page = place.on(node, "/usr/bin/python3", "-c", GET, path, token).partition(" ")
    assert status == "200"
    found = json.loads(page)

    cards = {card.uuid for card in place.cluster.gpus(node)}
    assert len(set(listed_uuids(found["gpus"])) & cards) == len(listed_uuids(found["gpus"])) == 2
    assert found["interfaces"] == ["lo"]
    assert "manifest.json" in found["data"]
    assert "Read-only" in found["data_refuses"]
    assert found["root_refuses"] is not None
    assert found["work"] == "/slipway/out/work"
    assert token not in json.dumps(found["environ"])

    assert place.on(node, "/usr/bin/python3", "-c", GET, path).startswith("403 ")
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", GET, path, token]
    assert "PermissionError" in place.cluster.exec(node, other, timeout=60).stderr
    ask = "import socket; socket.create_connection(('127.0.0.1', 5000), 5)"
    assert "ConnectionRefusedError" in place.cluster.exec(node, ["/usr/bin/python3", "-c", ask], timeout=60).stderr
    assert token not in place.told(node, "inspect", *place.told(node, "ps", "--quiet", "--filter", f"label={TAG}").split())

    assert len(place.containers()) == 1
    place.slipway("session", "stop", session["session"])
    assert place.containers() == []
    (ended,) = place.sessions()
    assert (Path(ended["pushed"]) / "work" / "model.txt").read_text() == "trained\n"


@pytest.mark.long
def test_a_notebook_computes_inside_of_its_container(place: Place) -> None:
    """Its program is what the site mounts into all containers, for want of an image that has it."""
    tools = os.environ.get("SLIPWAY_SESSION_TOOLS")
    if tools is None:
        pytest.skip("JupyterLab is not installed here: SLIPWAY_SESSION_TOOLS names an environment that has it")
    mounts = "".join(f"  - {{source: {path}, target: {path}}}\n" for path in (tools, sys.base_prefix))
    place.site.write_text(f"{place.site.read_text()}\nmounts:\n{mounts}env: {{PATH: '{tools}/bin:/usr/bin:/bin'}}\n")
    place.slipway("session", "notebook", "--image", IMAGE, "--gpus", "1", "--time", "20m")
    (session,) = place.sessions()
    node, path, token = session["node"], session["sockets"][0], (Path(session["directory"]) / "token").read_text()
    said = place.on(node, f"{tools}/bin/python", "-c", COMPUTE, path, token)
    assert json.loads(said) == {"out": "/slipway/out", "work": "/slipway/out/work", "gpus": 1}
    assert len(place.containers()) == 1
    place.on("login", "scancel", session["job_id"])
    wait_until(lambda: place.containers() == [], 60.0, "its container is gone with its job")
