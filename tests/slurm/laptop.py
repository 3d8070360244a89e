"""A laptop beside a mini-cluster, from which the login node is reached by SSH, over a line that can be cut."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster import sshd
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.test_profiles import Place

ROOT: Final = Path(__file__).parents[2]
ADDRESS: Final = "3.0"
"""The last two numbers of the laptop's address, which no host of a mini-cluster has."""
SLIPWAY: Final = """#!/bin/sh
{exports}
exec {python} -m workflow.commands.main "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A command that was typed, and the file of what it says. `person`: who sits before it where a second factor is asked for."""

    process: subprocess.Popen[Any]
    log: Path
    person: sshd.Person | None = None

    def said(self) -> str:
        return self.log.read_text()

    def ends_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """With all that it started, as a flat battery does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.leave()

    def leave(self) -> None:
        self.process.wait()
        if self.person is not None:
            self.person.leaves()

    def ended(self) -> str:
        assert self.process.wait(600) == 0, self.said()
        self.leave()
        return self.said()


class Laptop:
    """A network namespace beside the cluster's switch, from which the login nodes are reached by SSH as `gate`.

    `totp`: they ask for a second factor, which a person at the laptop types. `logins`: hosts of the cluster that are login nodes; behind
    the name stands the first, until `turn_to` names another one.
    """

    def __init__(self, cluster: Cluster, root: Path, *, totp: bool = False, logins: Sequence[str] = ("login",)) -> None:
        spec = cluster.spec
        self.cluster, self.name, self.switch, self.totp = cluster, f"{spec.name}-laptop", spec.netns("switch"), totp
        self.own, far = sshd.make_laptop(root / "laptop"), Path(cluster.shared)
        self.gates = {
            host: sshd.Host(name="gate", address=spec.address(host), directory=far / f"gate-{host}", home=far / "remote-home")
            for host in logins
        }
        self.gate = self.gates[logins[0]]
        self.folder = root / "my studies"
        self.folder.mkdir()
        self.typed: list[Typed] = []
        self.servers: list[subprocess.Popen[Any]] = []

    def open(self, environ: dict[str, str]) -> None:
        """Plug it in. `environ`: of Slipway on the login node."""
        spec = self.cluster.spec
        prefix = spec.address("login").rsplit(".", 2)[0]
        _ip(["netns", "add", self.name])
        _ip(["-n", self.switch, "link", "add", "laptop", "type", "veth", "peer", "name", "eth0", "netns", self.name])
        _ip(["-n", self.switch, "link", "set", "laptop", "master", "bridge", "up"])
        _ip(["-n", self.name, "addr", "add", f"{prefix}.{ADDRESS}/16", "dev", "eth0"])
        _ip(["-n", self.name, "link", "set", "eth0", "up"])
        self.gate.home.mkdir()
        for host, gate in self.gates.items():
            self._serve(host, gate, {**self.cluster.env, **environ})
        self.own.knows(*self.gates.values())
        self.own.configure(self.gate)

    def turn_to(self, host: str) -> None:
        """From now on this login node answers to the name, as behind a name with several addresses."""
        self.gate = self.gates[host]
        self.own.configure(self.gate)

    def _serve(self, host: str, gate: sshd.Host, environ: dict[str, str]) -> None:
        gate.directory.mkdir()
        shutil.copy(self.own.directory / "key.pub", gate.directory / "authorized_keys")
        gate.shell(path=environ["PATH"], noise="echo Welcome")
        exports = "\n".join(f"export {key}='{value}'" for key, value in environ.items() if key not in ("HOME", "AWS_SECRET_ACCESS_KEY"))
        sshd.script(gate.directory / "slipway", SLIPWAY.format(exports=exports, python=sys.executable))
        self.servers.append(start_sshd(self.cluster, host, gate, totp=self.totp))

    def bring(self, place: Place) -> None:
        shutil.move(place.root / f"{place.name}.yaml", self.folder / f"{place.name}.yaml")

    def slipway(self, *words: str) -> Typed:
        """`slipway remote gate ...`, in a session of its own."""
        argv = ["ip", "netns", "exec", self.name, sys.executable, "-m", "workflow.commands.main", "remote", "gate", *words]
        environ, log = {**self.own.environ, "PYTHONPATH": str(ROOT)}, self.own.directory / f"said-{len(self.typed)}"
        if self.totp:
            person = sshd.at_a_terminal(argv, environ, self.folder, log, sshd.current_code)
            self.typed.append(Typed(process=person.process, log=log, person=person))
            return self.typed[-1]
        with log.open("wb") as said:
            process = subprocess.Popen(
                argv, env=environ, cwd=self.folder, start_new_session=True, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
        self.typed.append(Typed(process=process, log=log))
        return self.typed[-1]

    def cut(self) -> None:
        """Nothing comes or goes, and nobody is told."""
        _ip(["-n", self.name, "link", "set", "eth0", "down"])

    def heal(self) -> None:
        _ip(["-n", self.name, "link", "set", "eth0", "up"])

    def drop(self, host: str = "login") -> None:
        """Every connection with this login node ends at once, as when it is restarted; what was started by them lives on."""
        pid = (self.gates[host].directory / "pid").read_text().strip()
        end = 'for one in $(cat "/proc/$0/task/$0/children"); do kill -9 "$one"; done'
        self.cluster.exec(host, ["/bin/sh", "-c", end, pid])

    def close(self) -> None:
        for typed in self.typed:
            if typed.process.poll() is None:
                typed.kill()
            typed.leave()
        for pid in subprocess.run(["ip", "netns", "pids", self.name], check=False, capture_output=True, text=True).stdout.split():
            _kill(int(pid))  # the connection that stays open for the next command
        for server in self.servers:
            server.terminate()
            server.wait()
        for argv in (["-n", self.switch, "link", "del", "laptop"], ["netns", "del", self.name]):
            subprocess.run(["ip", *argv], check=False)
        directories = (gate.directory for gate in self.gates.values())
        for directory in (*directories, self.gate.home, Path(self.own.environ["XDG_RUNTIME_DIR"])):
            shutil.rmtree(directory)


def start_sshd(cluster: Cluster, node: str, host: sshd.Host, *, totp: bool = False) -> subprocess.Popen[Any]:
    """Once it listens there; its directory has all but its own key and configuration. `totp`: it asks for a second factor."""
    sshd.keygen(host.directory / "host_key")
    sshd.configure(host, totp=totp, more="")
    own_pam = 'mount --bind "$1/pam.d" /etc/pam.d && ' if totp else ""
    listen = f'{own_pam}exec "$1/slipway-sshd" -D -e -f "$1/sshd_config" 2>"$1/log"'
    argv = [*(["unshare", "-m"] if totp else []), "/bin/sh", "-c", f"mkdir -p /run/sshd && {listen}", "sh", str(host.directory)]
    server = cluster.popen(node, argv)
    wait_until((host.directory / "pid").exists, 30, f"sshd listens: {host.directory / 'log'}")
    return server


def _ip(words: list[str]) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
