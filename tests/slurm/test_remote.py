"""`slipway remote` against a real login node: the line is cut, the laptop dies, and the same command again goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.ssh import sshd
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.slurm.test_profiles import Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(sshd.missing() is not None, reason="no sshd in namespaces here: root, openssh-server, iproute2"),
]
ROOT: Final = Path(__file__).parents[2]
CUTS: Final = 20
ADDRESS: Final = "3.0"
"""The last two numbers of the laptop's address, which no host of a mini-cluster has."""
SLIPWAY: Final = """#!/bin/sh
{exports}
exec {python} -m workflow.commands.main "$@"
"""


class Laptop:
    """A network namespace beside the cluster's switch, from which the login node is reached by SSH as `gate`."""

    def __init__(self, cluster: Cluster, place: Place, root: Path) -> None:
        spec = cluster.spec
        self.place, self.name, self.switch = place, f"{spec.name}-laptop", spec.netns("switch")
        self.own, far = sshd.make_laptop(root / "laptop"), Path(cluster.shared)
        self.gate = sshd.Host(name="gate", address=spec.address("login"), directory=far / "gate", home=far / "remote-home")
        self.folder = root / "my studies"
        self.processes: list[subprocess.Popen[Any]] = []
        self.server: subprocess.Popen[Any] | None = None

    def open(self, cluster: Cluster) -> None:
        """Plug it in."""
        spec = cluster.spec
        prefix = spec.address("login").rsplit(".", 2)[0]
        _ip(["netns", "add", self.name])
        _ip(["-n", self.switch, "link", "add", "laptop", "type", "veth", "peer", "name", "eth0", "netns", self.name])
        _ip(["-n", self.switch, "link", "set", "laptop", "master", "bridge", "up"])
        _ip(["-n", self.name, "addr", "add", f"{prefix}.{ADDRESS}/16", "dev", "eth0"])
        _ip(["-n", self.name, "link", "set", "eth0", "up"])
        self._serve(cluster)
        self.own.configure(self.gate)
        self.own.knows(self.gate)

    def _serve(self, cluster: Cluster) -> None:
        gate, environ = self.gate, {**cluster.env, **self.place.environ(3.0)}
        gate.home.mkdir()
        gate.directory.mkdir()
        sshd.keygen(gate.directory / "host_key")
        shutil.copy(self.own.directory / "key.pub", gate.directory / "authorized_keys")
        (gate.directory / "banner").write_text("Unauthorised use is prohibited.\n")
        gate.shell(path=cluster.env["PATH"], noise="echo Welcome")
        exports = "\n".join(f"export {key}='{value}'" for key, value in environ.items() if key not in ("HOME", "AWS_SECRET_ACCESS_KEY"))
        sshd.script(gate.directory / "slipway", SLIPWAY.format(exports=exports, python=sys.executable))
        sshd.configure(gate, totp=False, more="")
        start = 'mkdir -p /run/sshd && exec "$0" -D -e -f "$1" 2>"$2"'
        argv = ["/bin/sh", "-c", start, sshd.SSHD, str(gate.directory / "sshd_config"), str(gate.directory / "log")]
        self.server = cluster.popen("login", argv)
        wait_until((gate.directory / "pid").exists, 30, f"sshd listens: {gate.directory / 'log'}")

    def slipway(self, *words: str) -> subprocess.Popen[Any]:
        """`slipway remote gate ...`, in a session of its own."""
        argv = ["ip", "netns", "exec", self.name, sys.executable, "-m", "workflow.commands.main", "remote", "gate", *words]
        environ = {**self.own.environ, "PYTHONPATH": str(ROOT)}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(argv, env=environ, cwd=self.folder, start_new_session=True, **streams)  # type: ignore[call-overload]
        self.processes.append(process)
        return process  # type: ignore[no-any-return]

    def cut(self) -> None:
        _ip(["-n", self.name, "link", "set", "eth0", "down"])

    def heal(self) -> None:
        _ip(["-n", self.name, "link", "set", "eth0", "up"])

    def drop(self) -> None:
        """The connection ends at once, as when a login node is restarted."""
        for pid in self._masters():
            _kill(pid)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.drop()
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
        for argv in (["-n", self.switch, "link", "del", "laptop"], ["netns", "del", self.name]):
            subprocess.run(["ip", *argv], check=False)
        shutil.rmtree(self.own.environ["XDG_RUNTIME_DIR"])

    def _masters(self) -> list[int]:
        """Connections of the laptop, by where they are."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], check=False, capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in pids if b"ssh" in _command(pid)]


@pytest.fixture
def laptop(cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    place = Place(cluster, "remote")
    found = Laptop(cluster, place, tmp_path)
    try:
        found.open(cluster)
        found.folder.mkdir()
        shutil.move(place.root / "remote.yaml", found.folder / "study.yaml")
        yield found
    finally:
        found.close()
        place.close()


def test_twenty_cuts_lose_nothing_and_submit_nothing_twice(laptop: Laptop, cluster: Cluster) -> None:
    chance = random.Random(14)
    said = [_ended(laptop.slipway("setup", "--slipway", str(laptop.gate.directory / "slipway")))]
    for number in range(CUTS):
        process = laptop.slipway("submit", "study.yaml", "--wait")
        kind = ("kill", "drop", "kill", "drop", "cut")[number % 5]
        try:
            process.wait(chance.uniform(0.2, 12.0))  # what is tested: any moment
            said.append(f"{number} had ended with {process.returncode} before its {kind}")
            continue
        except subprocess.TimeoutExpired:
            pass
        if kind == "kill":
            os.killpg(process.pid, signal.SIGKILL)
        elif kind == "drop":
            laptop.drop()
            _let(process, chance.uniform(0.2, 8.0))
        else:
            laptop.cut()
            _let(process, 20.0)
            laptop.heal()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        said.append(process.communicate()[0])
    said.append(_ended(laptop.slipway("submit", "study.yaml", "--wait")))
    words = "\n".join(said)
    jobs = cluster.exec("login", ["squeue", "--states=all", "--noheader", "--format=%j"]).stdout.split()
    assert len([name for name in jobs if name.startswith("slipway-remote-")]) == 1, words
    runs = [run for run, *_ in laptop.place.started()]
    assert len(runs) == len(set(runs)) == len(list(laptop.place.results.glob("runs/*/record.json"))) == 4, words
    assert len(list((Path(cluster.shared) / "slipway" / "studies").glob("remote-*/*/study.yaml"))) == 1, words
    assert "Traceback" not in words
    _fetch(laptop, chance)


def _fetch(laptop: Laptop, chance: random.Random) -> None:
    """Results come down whole, over cuts."""
    for _ in range(5):
        process = laptop.slipway("tables", "study.yaml")
        if not _let(process, chance.uniform(3.0, 15.0)):
            os.killpg(process.pid, signal.SIGKILL)
    _ended(laptop.slipway("tables", "study.yaml"))
    here = laptop.folder / "results" / "study"
    there = laptop.place.results
    found = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    assert len([path for path in found if path.name == "record.json"]) == 4
    assert all((here / path).read_bytes() == (there / path).read_bytes() for path in found)


def _let(process: subprocess.Popen[Any], seconds: float) -> bool:
    """Whether it has ended by itself by then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ended(process: subprocess.Popen[Any]) -> str:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return str(out)


def _ip(words: list[str]) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes()
    except FileNotFoundError:
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
