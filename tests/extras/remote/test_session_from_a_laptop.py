"""`slipway remote HOST session` through a real sshd: the line that it prints, typed as it stands, reaches the page."""

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import sshd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sshd.missing() is not None, reason="no sshd in namespaces here: root, openssh-server, iproute2"),
]
ROOT: Final = Path(__file__).parents[3]
STAND_IN: Final = ROOT / "tests" / "extras" / "session" / "stand_in.py"
SITE: Final = "scheduler: local\nengine: bare\ndevice: cpu\nstorage: {root}/storage\ncache: {{path: {root}/cache}}\n"
SLIPWAY: Final = '#!/bin/sh\nexport PYTHONPATH={root}\nexec {python} -m workflow.commands.main "$@"\n'


class Desk:
    """A laptop and a host `gate`, which is one machine with a Slipway."""

    def __init__(self, root: Path, laptop: sshd.Laptop) -> None:
        self.root, self.laptop = root, laptop

    def slipway(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`slipway remote gate ...`."""
        argv = [sys.executable, "-m", "workflow.commands.main", "remote", "gate", *words]
        environ = {**self.laptop.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, cwd=self.root, env=environ, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    laptop = sshd.make_laptop(tmp_path / "laptop")
    found = Desk(tmp_path, laptop)
    (tmp_path / "site.yaml").write_text(SITE.format(root=tmp_path))
    sshd.script(tmp_path / "slipway", SLIPWAY.format(root=ROOT, python=sys.executable))
    try:
        with sshd.server(tmp_path / "gate", laptop, 3) as host:
            gate = dataclasses.replace(host, name="gate")
            laptop.configure(gate)
            laptop.knows(gate)
            said = found.slipway("setup", "--slipway", str(tmp_path / "slipway"), "--site", str(tmp_path / "site.yaml"))
            assert said.returncode == 0, said.stderr
            try:
                yield found
            finally:
                for directory in (tmp_path / "storage" / "sessions").glob("*"):
                    found.slipway("session", "stop", directory.name)
                found.slipway("close")
    finally:
        shutil.rmtree(laptop.environ["XDG_RUNTIME_DIR"])


def test_a_server_there_is_a_page_here(desk: Desk) -> None:
    port = str(17000 + os.getpid() % 1000)
    started = desk.slipway("session", "serve", "--ports", port, "--time", "5m", "--", sys.executable, str(STAND_IN), port)
    assert started.returncode == 0, started.stdout + started.stderr
    line = _found(r"on your laptop: (.*)", started.stdout)
    with subprocess.Popen(shlex.split(line), env=desk.laptop.environ) as tunnel:
        try:
            assert _page(_found(r"(http://\S+)", started.stdout), tunnel).startswith(b"/ ")
        finally:
            tunnel.terminate()
    name = _found(r"session (\S+):", started.stdout)
    listed = desk.slipway("session", "ls").stdout
    assert name in listed
    assert line in listed
    stopped = desk.slipway("session", "stop", name)
    assert stopped.returncode == 0, stopped.stderr
    assert f"session {name}: it was stopped" in stopped.stdout


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


def _page(url: str, tunnel: subprocess.Popen[bytes]) -> bytes:
    """Once the tunnel is there."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    end = time.monotonic() + 60
    while True:
        try:
            with opener.open(url, timeout=20) as answer:
                return bytes(answer.read())
        except OSError:
            assert tunnel.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
