"""A desk beside a mini-cluster: a laptop whose only way in is the login node, an sshd on every host, and a stranger on the network."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.ssh import sshd
from tests.minicluster import Cluster
from tests.minicluster.spec import USER, USER_ID
from tests.slurm.laptop import start_sshd
from tests.workflow.report.browser import Browser, browser

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
