"""A desk beside a mini-cluster: a laptop whose only way in is the login node, an sshd on every host, and a stranger on the network."""

import base64
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster import sshd
from tests.minicluster import Cluster
from tests.minicluster.spec import USER, USER_ID
from tests.slurm import intruder
from tests.slurm.laptop import start_sshd
from tests.workflow.report.browser import Browser, browser, find_chromium

LINK: Final = ("10.78.0.1", "10.78.0.2")
"""Of the line between login node and laptop, which is no part of the cluster's network."""
STRANGER: Final = "3.1"
"""The last two numbers of the address of a host of the cluster's network that is none of its nodes."""


class Desk:
    """Of the cluster's ordinary user. Names of the cluster, as the laptop knows them: `login` by its own address, the nodes by nothing but
    what the login node calls them."""

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.cluster = cluster
        self.laptop_net, self.stranger_net = (f"{cluster.spec.name}-{name}" for name in ("laptop", "stranger"))
        self.laptop = sshd.make_laptop(root / "laptop")
        self._servers: list[subprocess.Popen[Any]] = []

    def open(self) -> None:
        """Plug it all in."""
        self._make_nets()
        self._make_inner_key()
        hosts = [self._serve("login", LINK[0]), *(self._serve(node, node) for node in self.cluster.nodes)]
        self.laptop.configure(*hosts, more=f"Host *\n  User {USER}\n")
        self.laptop.knows(*hosts)
        inner = self.cluster.spec.home / ".ssh" / "known_hosts"
        inner.write_text("".join(host.known_line() for host in hosts))
        shutil.chown(inner, USER_ID, USER_ID)

    def _make_nets(self) -> None:
        spec = self.cluster.spec
        near, far = LINK
        _ip("netns", "add", self.laptop_net)
        _ip("-n", self.laptop_net, "link", "add", "eth0", "type", "veth", "peer", "name", "laptop", "netns", spec.netns("login"))
        _ip("-n", self.laptop_net, "addr", "add", f"{far}/30", "dev", "eth0")
        _ip("-n", spec.netns("login"), "addr", "add", f"{near}/30", "dev", "laptop")
        _ip("-n", spec.netns("login"), "link", "set", "laptop", "up")
        _ip("netns", "add", self.stranger_net)
        _ip("-n", spec.netns("switch"), "link", "add", "stranger", "type", "veth", "peer", "name", "eth0", "netns", self.stranger_net)
        _ip("-n", spec.netns("switch"), "link", "set", "stranger", "master", "bridge", "up")
        network = spec.address("login").rsplit(".", 2)[0]
        _ip("-n", self.stranger_net, "addr", "add", f"{network}.{STRANGER}/16", "dev", "eth0")
        for net in (self.laptop_net, self.stranger_net):
            _ip("-n", net, "link", "set", "lo", "up")
            _ip("-n", net, "link", "set", "eth0", "up")

    def _make_inner_key(self) -> None:
        """By which the user goes from host to host of the cluster."""
        own = self.cluster.spec.home / ".ssh"
        own.mkdir(mode=0o700)
        sshd.keygen(own / "id_ed25519")
        for path in (own, *own.iterdir()):
            shutil.chown(path, USER_ID, USER_ID)

    def _serve(self, name: str, address: str) -> sshd.Host:
        spec = self.cluster.spec
        directory = spec.shared / "sshd" / name
        directory.mkdir(parents=True)
        host = sshd.Host(name=name, address=address, directory=directory, home=spec.home)
        keys = (self.laptop.directory / "key.pub", spec.home / ".ssh" / "id_ed25519.pub")
        (directory / "authorized_keys").write_text("".join(key.read_text() for key in keys))
        host.shell(path=self.cluster.env["PATH"])
        self._servers.append(start_sshd(self.cluster, name, host))
        return host

    def close(self) -> None:
        """Unplug it."""
        for server in self._servers:
            server.terminate()
            server.wait()
        for net in (self.laptop_net, self.stranger_net):
            subprocess.run(["ip", "netns", "del", net], check=False, capture_output=True)
        shutil.rmtree(self.laptop.environ["XDG_RUNTIME_DIR"])

    # -- what is typed there

    def on_laptop(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the laptop."""
        return _inside(self.laptop_net, argv, env=self.laptop.environ, **options)

    def on_stranger(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the host that is none of ours."""
        return _inside(self.stranger_net, argv, **options)

    @contextmanager
    def tunnel(self, line: str) -> Iterator[subprocess.Popen[bytes]]:
        """A line that was printed for the laptop, as it stands."""
        argv = ["ip", "netns", "exec", self.laptop_net, "/bin/sh", "-c", f"exec {line}"]
        with subprocess.Popen(argv, env=self.laptop.environ, stdin=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.terminate()

    @contextmanager
    def browser(self, program: str, directory: Path) -> Iterator[Browser]:
        """Chromium on the laptop."""
        with browser(program, directory, before=("ip", "netns", "exec", self.laptop_net)) as found:
            yield found


def _inside(net: str, argv: tuple[str, ...], **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": 120, "check": False, **options}
    return subprocess.run(["ip", "netns", "exec", net, *argv], **options)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def other_user(*argv: str) -> list[str]:
    """The same command, by somebody who is not the user of the desk."""
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv]


# Sessions of a desk, as their user has them: started on the login node, opened in the laptop's browser; and whoever else looks.


LIMIT_S: Final = 120.0


def slipway(desk: Desk, *words: str) -> str:
    """As the user types it on the login node; what it says."""
    argv = ["slipway", *words, "--site", str(desk.cluster.site_file)]
    done = desk.cluster.exec("login", argv, user=USER, cwd=desk.cluster.spec.home, timeout=600)
    assert done.returncode == 0, done
    return str(done.stdout)


@dataclass(frozen=True, kw_only=True)
class Session:
    """One that answers, and the two lines that it printed."""

    name: str
    line: str
    url: str
    node: str
    sockets: list[str]
    directory: Path
    """On storage."""

    @property
    def token(self) -> str:
        return self.url.rpartition("token=")[2]

    @property
    def port(self) -> int:
        """On the laptop."""
        return int(found_in(r"127.0.0.1:(\d+)/", self.url))


def found_in(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


@contextmanager
def session(desk: Desk, *words: str) -> Iterator[Session]:
    """`slipway session WORDS`; stopped at the end."""
    said = slipway(desk, "session", *words)
    (seen,) = (one for one in json.loads(slipway(desk, "session", "ls", "--json")) if said.find(f"session {one['session']}: job") >= 0)
    try:
        yield Session(
            name=seen["session"],
            line=found_in("on your laptop: (.*)", said),
            url=found_in(r"then open: +(http://\S+)", said),
            node=seen["node"],
            sockets=seen["sockets"],
            directory=Path(seen["directory"]),
        )
    finally:
        slipway(desk, "session", "stop", seen["session"])


@contextmanager
def opened(desk: Desk, one: Session, directory: Path) -> Iterator[Browser]:
    """Its page in a browser of the laptop, by the printed line."""
    program = find_chromium()
    assert program is not None, "Chromium is in tests/debian-packages.txt"
    with desk.tunnel(one.line) as tunnel:
        ask = [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {one.port})).close()"]
        end = time.monotonic() + LIMIT_S
        while desk.on_laptop(*ask).returncode:
            assert tunnel.poll() is None, "the printed line has ended"
            assert time.monotonic() < end, "no tunnel"
        with desk.browser(program, directory) as page:
            page.open(one.url)
            yield page


def settle(page: Browser, condition: str) -> None:
    """Until it holds."""
    end = time.monotonic() + LIMIT_S
    while not page.evaluate(f"!!({condition})"):
        assert time.monotonic() < end, f"{condition}: {page.evaluate('document.body.innerText')}"
        time.sleep(0.2)


def screenshot(page: Browser) -> bytes:
    """A PNG."""
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


def intrude(desk: Desk, where: str, as_user: bool, **words: Any) -> dict[str, Any]:
    """What is found on a host, or on `laptop` and `stranger`; `as_user`: by another user than that of the session, else by root."""
    python = ["/usr/bin/python3", "-c", Path(intruder.__file__).read_text()]
    argv = other_user(*python) if as_user else python
    options = {"input": json.dumps(words), "timeout": 300}
    on = {"laptop": desk.on_laptop, "stranger": desk.on_stranger}.get(where)
    done = desk.cluster.exec(where, argv, **options) if on is None else on(*argv, **options)
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def places_of_token(desk: Desk, one: Session) -> set[str]:
    """All files of all hosts and of storage that have it; those of the session's own directory on the node as `its/...`."""
    spec = desk.cluster.spec
    found = intruder.files_with(one.token.encode(), [str(spec.root)])
    own = f"{spec.node_directory(one.node)}{Path(one.sockets[0]).parent}/"
    return {re.sub(r"\d+", "N", f"its/{path.removeprefix(own)}") if path.startswith(own) else path for path in found}


def assert_nobody_else_gets_anything(desk: Desk, one: Session, pages: dict[str, str]) -> None:
    """`pages`: of the tunnel's port, and how the answer to who has no token begins. To be called while the page is open on the laptop."""
    spec = desk.cluster.spec
    roots = [str(spec.shared / "slipway"), "/tmp", "/local", "/run"]
    on_node = intrude(desk, one.node, True, token=one.token, roots=roots, sockets=one.sockets)
    ports = [(spec.address(one.node), port) for port in on_node["listening"]]
    on_login = intrude(desk, "login", True, token=one.token, roots=roots, addresses=ports)
    on_network = intrude(desk, "stranger", True, token=one.token, addresses=ports)
    on_laptop = intrude(desk, "laptop", True, token=one.token, pages=[("127.0.0.1", one.port, target) for target in pages])
    assert on_node["sockets"] == ["PermissionError"] * len(one.sockets)
    for found in (on_node, on_login):
        assert (found["proc"], found["environs"], found["files"]) == ([], [], []), found
    for found in (on_node, on_login, on_network):
        assert found["ports"], "those of Slurm and sshd at least"
        answers = [answer for answer in found["ports"].values() if "HTTP/" in answer]
        assert answers == [], "no port of the cluster has a page"
    starts = [answer.split("\r\n")[0] for answer in on_laptop["pages"]]
    assert starts == list(pages.values())
    for where in ("login", *desk.cluster.nodes):
        assert intrude(desk, where, False, token=one.token)["proc"] == [], f"{where}: what root sees of all processes"
